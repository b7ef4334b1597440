// A library with the right name and none of the functions.
extern "C" __attribute__((visibility("default"))) int NotADriver() { return 0; }
