"""A program on a terminal: executes the lines that it reads, and prints what happens to it."""

import os
import select
import signal
import sys


def say(text):
    os.write(1, text.encode() + b"\n")


def size():
    found = os.get_terminal_size(0)
    return f"{found.lines}x{found.columns}"


# Python handles signals only between two bytecodes, and a read that has just started would delay
# that. Hence nothing is read before input is available.
SAID = {signal.SIGWINCH: lambda: f"window {size()}", signal.SIGINT: lambda: "interrupted",
        signal.SIGTERM: lambda: "terminated"}


def obey(words):
    if words[0] == "size":
        say(f"size {size()}")
    elif words[0] == "pour":  # prints this many numbered lines
        for i in range(int(words[1])):
            os.write(1, f"line {i} {'.' * 80}\n".encode())
        say("poured")
        if len(words) > 2:
            open(words[2], "w").close()
    elif words[0] == "exit":
        sys.exit(int(words[1]))
    else:
        say(f"heard {' '.join(words)}")


def main():
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in SAID:
        signal.signal(number, lambda *_: None)
    say("ready " + (f"{os.ttyname(0)} {size()}" if os.isatty(0) else "no terminal"))
    unread = b""
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            for number in os.read(woken, 100):
                say(SAID[number]())
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                if line.strip():
                    obey(line.decode().split())
    say("end of input")


main()
