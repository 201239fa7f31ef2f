// RUN: f 300,-300,7 _
// CHECK: func.func @f(%[[X:.*]]: memref<3xi16>, %[[Y:.*]]: memref<3xi8>) attributes {cuvil.role = #cuvil.role<kernel>}
// CHECK: "cuvil.level2.saturate"(%{{.*}}) <{dtype = #cuvil.dtype<"i8">, layer = 3 : i32}> : (i16) -> i8
// CHECK: } {cuvil.name = #cuvil.name<"n">, cuvil.pipeline = #cuvil.pipeline<2>}
// CHECK: y: 127, -128, 7
func.func @f(%x : memref<3xi16>, %y : memref<3xi8>) attributes {cuvil.role = #cuvil.role<kernel>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %three = arith.constant 3 : index
  scf.for %i = %zero to %three step %one {
    %v = memref.load %x[%i] : memref<3xi16>
    %s = "cuvil.level2.saturate"(%v) <{dtype = #cuvil.dtype<"i8">, layer = 3 : i32}> : (i16) -> i8
    memref.store %s, %y[%i] : memref<3xi8>
  } {cuvil.name = #cuvil.name<"n">, cuvil.pipeline = #cuvil.pipeline<2>}
  func.return
}
