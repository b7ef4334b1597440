"""A strict parser of Prometheus' text format 0.0.4, limited to the parts that the daemon uses."""

import re

from world import demand

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


class Family:
    def __init__(self, name, kind):
        self.name = name
        self.kind = kind
        self.samples = {}  # (name, frozenset of labels) -> value

    def label_names(self):
        return {name for _, labels in self.samples for name, _ in labels} - {"le"}


def parse(text):
    """Returns families by name. A syntax error is a failure."""
    demand(text.endswith("\n"), "the last line has no end")
    families, family, helped = {}, None, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
            demand(helped not in families, f"{helped} comes twice")
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            demand(name == helped and kind in ("counter", "gauge", "histogram"), line)
            family = families[name] = Family(name, kind)
        else:
            _sample(family, line)
    for each in families.values():
        _check(each)
    return families


def _sample(family, line):
    found = SAMPLE.match(line)
    demand(found and family, f"no sample: {line!r}")
    name, inner, value = found.groups()
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    demand(name in [family.name + s for s in suffixes], f"{line!r} below {family.name}")
    labels, at = [], 0
    while inner and at < len(inner):
        label = LABEL.match(inner, at)
        demand(label, f"no label: {line!r} from {at}")
        labels.append(label.groups())
        at = label.end()
    key = (name, frozenset(labels))
    demand(len(dict(labels)) == len(labels) and key not in family.samples, f"twice: {line!r}")
    family.samples[key] = float(value)


def _check(family):
    if family.kind == "counter":
        demand(family.name.endswith("_total"), f"{family.name} is a counter")
        demand(all(v >= 0 for v in family.samples.values()), f"{family.name} is negative")
    if family.kind != "histogram":
        return
    series = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            bound = float(dict(labels)["le"])
            series.setdefault(frozenset(p for p in labels if p[0] != "le"), []).append((bound, value))
    for labels, buckets in series.items():
        counts = [count for _, count in sorted(buckets)]
        demand(counts == sorted(counts), f"{family.name}{set(labels)} does not rise: {counts}")
        demand(max(buckets)[0] == float("inf"), f"{family.name} has no last bound")
        demand(family.samples[(family.name + "_count", labels)] == counts[-1], f"{family.name}_count")


class Scrape:
    def __init__(self, text):
        self.families = parse(text)

    def value(self, name, **labels):
        """Returns None if there is no such series. `name` may end in _sum or _count."""
        wanted = frozenset((k, str(v)) for k, v in labels.items())
        for family in self.families.values():
            if (name, wanted) in family.samples:
                return family.samples[(name, wanted)]
        return None
