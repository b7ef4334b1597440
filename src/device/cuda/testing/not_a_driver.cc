// A library of the right name with none of the functions.
extern "C" __attribute__((visibility("default"))) int NotADriver() { return 0; }
