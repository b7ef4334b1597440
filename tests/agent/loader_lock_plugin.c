// The library loaded by agent_loader_lock.
void InConstructor(void);
__attribute__((constructor)) static void Construct(void) { InConstructor(); }
