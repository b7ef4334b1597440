"""threads_test.py SOURCE: product code starts threads only in base/thread.h and base/parallel.h,
where a failed start is an error. Anywhere else it would be an exception in the middle of an
operation."""

import pathlib
import re
import sys

HELPERS = {"base/thread.h", "base/parallel.h", "base/parallel.cc"}
NO_PRODUCT = re.compile(r"_(test|bench|fuzz)\.cc$|_testing\.h$|/testing/")
# Names such as std::thread::id start nothing.
STARTS = re.compile(r"std::(jthread|async|thread(?!\w|::))|\bpthread_create\s*\(")


def starts_in(text):
    """Yields (number, line) of each line that starts a thread or may do so."""
    for number, line in enumerate(text.splitlines(), 1):
        if STARTS.search(line.split("//")[0]):
            yield number, line.strip()


def main(source):
    # Checks the rule itself.
    for line in ("std::thread t(f);", "std::vector<std::thread> v;", "auto f = std::async(g);", "std::jthread t;",
                 "pthread_create(&t, nullptr, f, nullptr);"):
        assert list(starts_in(line)), line
    for line in ("std::thread::id id;", "// std::thread", "std::this_thread::get_id()", "std::threads"):
        assert not list(starts_in(line)), line
    folder = pathlib.Path(source) / "src"
    files = [path for pattern in ("**/*.cc", "**/*.h") for path in folder.glob(pattern)]
    assert len(files) > 100, f"only {len(files)} files below {folder}"
    found = []
    for path in files:
        name = str(path.relative_to(folder))
        if name in HELPERS or NO_PRODUCT.search(name):
            continue
        found += [f"src/{name}:{number}: {line}" for number, line in starts_in(path.read_text())]
    if found:
        print("Start threads with stasis::Thread (base/thread.h) or base/parallel.h:")
        print("\n".join(sorted(found)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
