// RUN: f 7.5,-7.5,inf 2,2,2 _
// The sign of the dividend, as C's fmod; an infinite dividend gives NaN.
// CHECK: arith.remf %{{.*}}, %{{.*}} : f32
// CHECK: y: 1.5, -1.5, nan
func.func @f(%a : memref<3xf32>, %b : memref<3xf32>, %y : memref<3xf32>) attributes {cuvil.role = #cuvil.role<kernel>, cuvil.args = #cuvil.args<["a", "b", "y"]>, cuvil.comment = #cuvil.comment<"rem, model.py:3">} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %three = arith.constant 3 : index
  scf.for %i = %zero to %three step %one {
    %v = memref.load %a[%i] : memref<3xf32>
    %w = memref.load %b[%i] : memref<3xf32>
    %r = arith.remf %v, %w : f32
    memref.store %r, %y[%i] : memref<3xf32>
  } {cuvil.unroll = #cuvil.unroll}
  func.return
}
