// RUN: f _
// CONSTANT: d0 u8 200,1
// A table of unsigned numbers is signless: 200 is kept as -56, and extended from zero up.
// CHECK: "memref.global"() <{{{.*}}}> {cuvil.handle = #cuvil.handle<"d0">, cuvil.dtype = #cuvil.dtype<"u8">, cuvil.stored = #cuvil.stored<"u8">} : () -> ()
// CHECK: memref.get_global @t : memref<2xi8> {cuvil.bind = #cuvil.bind<lutram>, cuvil.reshape = #cuvil.reshape<[0]>, cuvil.read_ports = #cuvil.read_ports<2>}
// CHECK: y: 200, -56
"memref.global"() <{sym_name = "t", type = memref<2xi8>, initial_value, sym_visibility = "public", constant}> {cuvil.handle = #cuvil.handle<"d0">, cuvil.dtype = #cuvil.dtype<"u8">, cuvil.stored = #cuvil.stored<"u8">} : () -> ()
func.func @f(%y : memref<2xi32>) attributes {cuvil.role = #cuvil.role<kernel>, cuvil.kernels = #cuvil.kernels<["f", "g"]>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %t = memref.get_global @t : memref<2xi8> {cuvil.bind = #cuvil.bind<lutram>, cuvil.reshape = #cuvil.reshape<[0]>, cuvil.read_ports = #cuvil.read_ports<2>}
  %v = memref.load %t[%zero] : memref<2xi8>
  %wide = arith.extui %v : i8 to i32
  memref.store %wide, %y[%zero] : memref<2xi32>
  %signed = arith.extsi %v : i8 to i32
  memref.store %signed, %y[%one] : memref<2xi32>
  func.return
}
