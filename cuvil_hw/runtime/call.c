// Calls a generated library from Python with as little as possible around it (runtime/shim.py). A call that isn't
// exactly one array of the right type for each input returns None: Python then checks, converts or refuses it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#define MOST_PORTS 16
#define MOST_DIMENSIONS 8
#define ALIGN 64

typedef int (*Run)(const void *const *, void *const *, const void *const *, void *);

typedef struct {
  char format;
  int rank;
  Py_ssize_t itemsize;
  Py_ssize_t shape[MOST_DIMENSIONS];
} Port;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Run run;
  const void *const *constants;
  PyObject *kept;    // owner of what `constants` points to
  PyObject *array;   // numpy.ndarray
  PyObject *empty;   // numpy.empty
  PyObject *shapes;  // of the outputs: a tuple of (shape, dtype)
  Port in[MOST_PORTS], out[MOST_PORTS];
  int ins, outs;
  size_t workspace;
  void **spare;  // workspaces that no call uses
  int spares, room;
  int active;  // calls that run
  int closed;
} Caller;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Caller *caller;
  Py_buffer in[MOST_PORTS], out[MOST_PORTS];
  int ins, outs;  // buffers that are held
} Bound;

// A workspace, aligned, and before it where its piece of memory begins. The interpreter's lock guards the list.
static void *take_workspace(Caller *c) {
  if (c->spares > 0)
    return c->spare[--c->spares];
  char *piece = PyMem_RawMalloc(c->workspace + ALIGN + sizeof(void *));
  if (piece == NULL)
    return NULL;
  uintptr_t at = ((uintptr_t)piece + sizeof(void *) + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1);
  ((void **)at)[-1] = piece;
  return (void *)at;
}

static void give_workspace(Caller *c, void *workspace) {
  if (c->spares == c->room) {
    int room = 2 * c->room + 4;
    void **more = PyMem_RawRealloc(c->spare, room * sizeof(void *));
    if (more == NULL) {
      PyMem_RawFree(((void **)workspace)[-1]);
      return;
    }
    c->spare = more;
    c->room = room;
  }
  c->spare[c->spares++] = workspace;
}

static int fits(PyObject *caller_array, PyObject *value, const Port *port, Py_buffer *view, int writable) {
  if ((PyObject *)Py_TYPE(value) != caller_array)
    return 0;
  if (PyObject_GetBuffer(value, view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0) {
    PyErr_Clear();
    return 0;
  }
  int same = view->format != NULL && view->format[0] == port->format && view->format[1] == 0 &&
             view->itemsize == port->itemsize && view->ndim == port->rank &&
             (uintptr_t)view->buf % (uintptr_t)port->itemsize == 0;
  for (int d = 0; same && d < port->rank; ++d)
    same = view->shape[d] == port->shape[d];
  if (!same)
    PyBuffer_Release(view);
  return same;
}

// -1: there was no memory.
static int run(Caller *c, const Py_buffer *in, const Py_buffer *out) {
  const void *given[MOST_PORTS];
  void *made[MOST_PORTS];
  for (int n = 0; n < c->ins; ++n)
    given[n] = in[n].buf;
  for (int n = 0; n < c->outs; ++n)
    made[n] = out[n].buf;
  void *workspace = take_workspace(c);
  if (workspace == NULL)
    return -1;
  int code;
  ++c->active;
  Py_BEGIN_ALLOW_THREADS
  code = c->run(given, made, c->constants, workspace);
  Py_END_ALLOW_THREADS
  --c->active;
  give_workspace(c, workspace);
  return code;
}

static PyObject *call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
  Caller *c = (Caller *)self;
  if (c->closed || names != NULL || PyVectorcall_NARGS(flags) != c->ins)
    Py_RETURN_NONE;
  Py_buffer in[MOST_PORTS], out[MOST_PORTS];
  PyObject *arrays[MOST_PORTS], *result = NULL;
  int ins = 0, outs = 0, held = 0, code = -1;
  while (ins < c->ins && fits(c->array, args[ins], &c->in[ins], &in[ins], 0))
    ++ins;
  if (ins == c->ins) {
    for (; outs < c->outs; ++outs) {
      PyObject *shape = PyTuple_GET_ITEM(c->shapes, outs);
      PyObject *const of[] = {PyTuple_GET_ITEM(shape, 0), PyTuple_GET_ITEM(shape, 1)};
      arrays[outs] = PyObject_Vectorcall(c->empty, of, 2, NULL);
      if (arrays[outs] == NULL)
        break;
    }
    while (held < outs && fits(c->array, arrays[held], &c->out[held], &out[held], 1))
      ++held;
    if (held == c->outs) {
      Py_INCREF(c);
      code = run(c, in, out);
      Py_DECREF(c);
    }
  }
  for (int n = 0; n < ins; ++n)
    PyBuffer_Release(&in[n]);
  for (int n = 0; n < held; ++n)
    PyBuffer_Release(&out[n]);
  if (code == 0 && outs == 1) {
    return arrays[0];
  }
  if (code == 0 && (result = PyTuple_New(outs)) != NULL) {
    for (int n = 0; n < outs; ++n)
      PyTuple_SET_ITEM(result, n, arrays[n]);
    return result;
  }
  for (int n = 0; n < outs; ++n)
    Py_DECREF(arrays[n]);
  if (PyErr_Occurred())
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *call_bound(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
  (void)args;
  Bound *b = (Bound *)self;
  if (names != NULL || PyVectorcall_NARGS(flags) != 0) {
    PyErr_SetString(PyExc_TypeError, "a bound call takes no arguments");
    return NULL;
  }
  return PyBool_FromLong(!b->caller->closed && run(b->caller, b->in, b->out) == 0);
}

static void free_bound(PyObject *self) {
  Bound *b = (Bound *)self;
  for (int n = 0; n < b->ins; ++n)
    PyBuffer_Release(&b->in[n]);
  for (int n = 0; n < b->outs; ++n)
    PyBuffer_Release(&b->out[n]);
  Py_XDECREF(b->caller);
  Py_TYPE(self)->tp_free(self);
}

static PyTypeObject bound_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cuvil_call.Bound",
    .tp_basicsize = sizeof(Bound),
    .tp_dealloc = free_bound,
    .tp_vectorcall_offset = offsetof(Bound, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Runs on the arrays that it holds; False when it could not.",
};

static PyObject *bind(PyObject *self, PyObject *args) {
  Caller *c = (Caller *)self;
  PyObject *in, *out;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &in, &PyTuple_Type, &out))
    return NULL;
  if (PyTuple_GET_SIZE(in) != c->ins || PyTuple_GET_SIZE(out) != c->outs)
    Py_RETURN_NONE;
  Bound *b = PyObject_New(Bound, &bound_type);
  if (b == NULL)
    return NULL;
  Py_INCREF(c);
  b->caller = c;
  b->vectorcall = call_bound;
  b->ins = b->outs = 0;
  while (b->ins < c->ins && fits(c->array, PyTuple_GET_ITEM(in, b->ins), &c->in[b->ins], &b->in[b->ins], 0))
    ++b->ins;
  while (b->outs < c->outs && fits(c->array, PyTuple_GET_ITEM(out, b->outs), &c->out[b->outs], &b->out[b->outs], 1))
    ++b->outs;
  if (b->ins == c->ins && b->outs == c->outs)
    return (PyObject *)b;
  Py_DECREF(b);
  Py_RETURN_NONE;
}

// No call starts any more; tells how many still run.
static PyObject *close_caller(PyObject *self, PyObject *none) {
  (void)none;
  Caller *c = (Caller *)self;
  c->closed = 1;
  return PyLong_FromLong(c->active);
}

static void free_caller(PyObject *self) {
  Caller *c = (Caller *)self;
  for (int n = 0; n < c->spares; ++n)
    PyMem_RawFree(((void **)c->spare[n])[-1]);
  PyMem_RawFree(c->spare);
  Py_XDECREF(c->kept);
  Py_XDECREF(c->array);
  Py_XDECREF(c->empty);
  Py_XDECREF(c->shapes);
  Py_TYPE(self)->tp_free(self);
}

static PyMethodDef caller_methods[] = {
    {"bind", bind, METH_VARARGS, "bind(inputs, outputs): a call on these arrays; None when they don't fit"},
    {"close", close_caller, METH_NOARGS, "Start no call any more; returns how many still run"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject caller_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cuvil_call.Caller",
    .tp_basicsize = sizeof(Caller),
    .tp_dealloc = free_caller,
    .tp_vectorcall_offset = offsetof(Caller, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_methods = caller_methods,
    .tp_doc = "One sample: arrays to fresh arrays; None when they aren't exactly what the library takes.",
};

static int read_ports(PyObject *of, Port *ports) {
  Py_ssize_t count = PyTuple_GET_SIZE(of);
  if (count > MOST_PORTS)
    return -1;
  for (Py_ssize_t n = 0; n < count; ++n) {
    PyObject *shape;
    int format;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(of, n), "CnO!", &format, &ports[n].itemsize, &PyTuple_Type, &shape))
      return -1;
    ports[n].format = (char)format;
    ports[n].rank = (int)PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(shape) > MOST_DIMENSIONS || ports[n].itemsize < 1)
      return -1;
    for (int d = 0; d < ports[n].rank; ++d)
      ports[n].shape[d] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, d));
  }
  return PyErr_Occurred() ? -1 : (int)count;
}

static PyObject *make(PyObject *module, PyObject *args) {
  (void)module;
  Py_ssize_t address, constants, workspace;
  PyObject *in, *out, *kept, *array, *empty, *shapes;
  if (!PyArg_ParseTuple(args, "nnnO!O!OOOO!", &address, &constants, &workspace, &PyTuple_Type, &in, &PyTuple_Type,
                        &out, &kept, &array, &empty, &PyTuple_Type, &shapes))
    return NULL;
  Caller *c = PyObject_New(Caller, &caller_type);
  if (c == NULL)
    return NULL;
  memset((char *)c + offsetof(Caller, vectorcall), 0, sizeof(Caller) - offsetof(Caller, vectorcall));
  c->vectorcall = call;
  c->run = (Run)address;
  c->constants = (const void *const *)constants;
  c->workspace = (size_t)workspace;
  c->ins = read_ports(in, c->in);
  c->outs = read_ports(out, c->out);
  c->kept = Py_NewRef(kept);
  c->array = Py_NewRef(array);
  c->empty = Py_NewRef(empty);
  c->shapes = Py_NewRef(shapes);
  if (c->ins < 0 || c->outs < 0 || PyTuple_GET_SIZE(shapes) != c->outs) {
    Py_DECREF(c);
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_ValueError, "more ports or dimensions than a call takes");
    return NULL;
  }
  return (PyObject *)c;
}

static PyMethodDef functions[] = {
    {"make", make, METH_VARARGS, "make(run, constants, workspace, inputs, outputs, kept, ndarray, empty, shapes)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "cuvil_call", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_cuvil_call(void) {
  if (PyType_Ready(&caller_type) < 0 || PyType_Ready(&bound_type) < 0)
    return NULL;
  return PyModule_Create(&module);
}
