"""room_test.py --build DIR [--only CASE]: no user can take all of the daemon's connections."""

import os
import pathlib
import resource
import select
import socket
import sys

from daemon_fixture import DaemonFixture, demand, isolate, main, wait_until
from users_test import ALICE, BOB, User, for_all, leave

# The limits in src/api/server_pool.h.
CALLERS, KEPT, OF_ACCOUNT = 1024, 64, 64
# That in src/api/operation_table.h.
CALLS_OF_ACCOUNT = 128
SUBORDINATES = 100000  # her subordinate ids
STRANGERS = 20000  # users without an account


def soft_limit(pid):
    line = next(line for line in pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()
                if line.startswith("Max open files"))
    return [int(word) for word in line.split()[3:5]]


def descriptors(fixture: DaemonFixture):
    """The daemon raises its limit of descriptors; a job has the limit of the process that started
    the daemon."""
    world = fixture.world
    world.shell("ulimit -Sn 300 && ulimit -Hn 5000 && stasis daemon start --json")
    fixture.pid = world.last.json()["pid"]
    demand(soft_limit(fixture.pid) == [5000, 5000], f"its limits are {soft_limit(fixture.pid)}")
    messages, stubs = fixture.stubs()
    stub = stubs.StasisStub(fixture.channel())
    pid = stub.Run(messages.RunRequest(job="job", argv=["/bin/sleep", "1000"])).pid
    parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    demand(soft_limit(pid) == [300, 5000], f"the job's limits are {soft_limit(pid)}")
    demand(soft_limit(parent) == [300, 5000], f"its shim's limits are {soft_limit(parent)}")
    stub.KillJob(messages.KillJobRequest(job="job", signal=9))
    stub.WaitJob(messages.WaitJobRequest(job="job"))
    stub.DeleteJob(messages.DeleteJobRequest(job="job"))


def connect(fixture, uid):
    """Connects as that user."""
    peer = socket.socket(socket.AF_UNIX)
    os.seteuid(uid)
    try:
        peer.connect(fixture.socket)
    finally:
        os.seteuid(0)
    return peer


def closed(peers):
    poll = select.poll()
    for peer in peers:
        poll.register(peer, select.POLLIN | select.POLLRDHUP)
    # A connection with a gRPC server receives settings first, so readable data is not end-of-file.
    ended = {fd for fd, events in poll.poll(0) if events & (select.POLLHUP | select.POLLRDHUP)}
    return [peer for peer in peers if peer.fileno() in ended]


def close(peers):
    for peer in peers:
        peer.close()


def refusals(fixture):
    return (fixture.world.state / "run" / "stasisd.log").read_text().count("a connection was closed")


def many_subordinate_ids(fixture: DaemonFixture):
    """A user with many subordinate ids shares one quota among them."""
    for_all(fixture)
    subuid = fixture.world.folder / "subuid"
    subuid.write_text(f"{ALICE}:{SUBORDINATES}:65536\n")
    there = os.path.exists("/etc/subuid")
    if not there:
        open("/etc/subuid", "w").close()
    isolate.mount(str(subuid), "/etc/subuid", flags=isolate.MS_BIND)
    try:
        fixture.start()
        bob, alice = User(fixture, BOB), User(fixture, ALICE)
        early = connect(fixture, BOB)
        peers = [connect(fixture, SUBORDINATES + number) for number in range(OF_ACCOUNT + 20)]
        wait_until(lambda: len(closed(peers)) == 20, 60, lambda: f"{len(closed(peers))} of hers are closed")
        demand(closed(peers) == peers[:20], "the closed connection is not the one idle for longest")
        demand(not closed([early]), "another user's connection was closed")
        demand(bob.jobs() == {} and alice.jobs() == {}, "there are jobs")
        fixture.world.stasis("ps")
        demand(refusals(fixture) == 0, "somebody was refused")
        close([*peers, early])
        fixture.drain()
    finally:
        isolate.unmount("/etc/subuid")
        if not there:
            os.unlink("/etc/subuid")
    leave(fixture)


def more_users_than_the_limit(fixture: DaemonFixture):
    """A new client is served in place of the one idle for longest; clients with a call in progress
    stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    for_all(fixture)
    fixture.start()
    alice, bob = User(fixture, ALICE), User(fixture, BOB)
    alice.run("hers")
    waiting = fixture.begin_waiting("wait", "hers", begin=alice.begin)
    roots = connect(fixture, 0)
    more = 30
    peers = [connect(fixture, STRANGERS + number) for number in range(CALLERS - KEPT + more)]

    def the_longest_idle_are_closed():
        # Separate threads handle the connections, so a later one may be faster.
        gone = closed(peers)
        return len(gone) >= more and gone == peers[:len(gone)]

    wait_until(the_longest_idle_are_closed, 60,
               lambda: f"closed are {[number for number, peer in enumerate(peers) if peer in closed([peer])]}")
    demand(not closed([roots]), "root's connection was closed")
    demand(bob.jobs() == {}, "he has jobs")
    fixture.world.stasis("ps")
    demand(waiting.process.poll() is None, f"her call was ended: {waiting}")
    demand(refusals(fixture) == 0, "somebody was refused")
    alice.stasis("kill", "hers", "-s", "KILL")
    demand(waiting.wait().code == 137, f"{waiting}")
    alice.stasis("delete", "hers")
    close([*peers, roots])
    fixture.drain()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    leave(fixture)


def starts_during_a_survey_that_hangs(fixture: DaemonFixture):
    """Jobs that are about to share GPUs wait for a survey. Others are served meanwhile."""
    import grpc
    for_all(fixture)
    alice = User(fixture, ALICE)
    messages, stubs = fixture.stubs()
    fixture.hold_workers()
    fixture.hold("worker")
    channels = [fixture.channel(apart=True) for _ in range(4)]
    request = messages.NoteShareRequest(starting=True)
    calls = [stubs.StasisStub(channels[i % len(channels)]).NoteShare.future(request, timeout=120)
             for i in range(CALLS_OF_ACCOUNT + 1)]
    wait_until(lambda: any(call.done() for call in calls), 15, "the daemon does not take in all calls")
    refused = [call for call in calls if call.done()]
    demand([call.code() for call in refused] == [grpc.StatusCode.RESOURCE_EXHAUSTED], f"{refused}")
    demand(alice.stasis("daemon", "status", "--json").json()["pid"] == fixture.pid, "another daemon answers")
    demand([call for call in calls if call.done()] == refused, "another user's call has waited for them")
    fixture.let_go("worker")
    for call in calls:
        demand(call in refused or call.exception() is None, f"{call.code()}")
    for channel in channels:
        channel.close()
    fixture.leave_workers()
    leave(fixture)


if __name__ == "__main__":
    sys.exit(main([descriptors, many_subordinate_ids, more_users_than_the_limit, starts_during_a_survey_that_hangs]))
