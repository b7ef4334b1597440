#!/usr/bin/env python3
"""Checks that each folder of src/ includes only the folders that ALLOWED lists.

usage: tests/source/layers_test.py [CHECKOUT]

Dependencies run one way: a folder may include folders that stand below it in the table, and only those that its
row names. A row that names a folder which is no longer included fails too, so the table stays exact. Also checks that
the code names the software GPU in one header only.
"""

import pathlib
import re
import sys

# From the top layer to the bottom one. Tests and test fakes are exempt.
ALLOWED = {
    'bench': 'cli api operations checks gpu_state plan jobs dataplane repository store objects device config base abi',
    'cli': 'conformance slurm_setup api config base abi',
    # The checks and the clean-up of Slurm's nodes.
    'slurm_setup': 'process base',
    # The conformance run of `stasis check --gpu`: runs the commands of Stasis as a user does.
    'conformance': 'base abi',
    'api': 'sharing operations checks gpu_state plan jobs shim health containers dataplane repository store migration objects '
           'device config process base abi',
    # Programs that share GPUs: the policy, and the manager that follows it.
    'sharing': 'agent_client process base',
    'operations': 'checks checkpoint gpu_state plan jobs repository store criu device agent_client ipc process config base',
    'checks': 'checkpoint gpu_state plan jobs containers repository store criu device agent_client ipc process base',
    'checkpoint': 'gpu_state plan jobs dataplane store criu ipc process base',
    'gpu_state': 'plan dataplane device agent_client agent_protocol process config base',
    # The journal uses the names of GPUs and of their states from `device`, and nothing else.
    'plan': 'device process base',
    'jobs': 'shim ipc process base',
    'shim': 'ipc process base',
    'health': 'containers criu dataplane device agent_client process base abi',
    # The commands of container runtimes, and the files that they share with Stasis.
    'containers': 'criu process base',
    'dataplane': 'device ipc process base abi',
    # Remote images: their protocol, encryption and keys.
    'repository': 'objects store base',
    'store': 'base',
    # The channel to the other host of a migration, and objects through it.
    'migration': 'objects base',
    'objects': 'base',
    'criu': 'ipc process base abi',
    'agent_client': 'agent_protocol ipc process base',
    # The code that runs inside user programs.
    'agent': 'agent_protocol abi',
    # The agent's messages. Needs nothing but libc.
    'agent_protocol': 'ipc',
    'device': 'ipc process abi base',
    'ipc': 'process base',
    'process': 'base abi',
    'config': 'base',
    'base': 'abi',
    # The drivers' functions, structures and kinds. Needs nothing but libc.
    'abi': '',
}
# Where a folder may include only some headers of another one.
ONLY = {
    ('agent_protocol', 'ipc'): {'ipc/packet.h'},
    ('plan', 'device'): {'device/ids.h'},
    # The functions of the drivers are for `device`, `dataplane` and `agent`.
    **{(folder, 'abi'): {'abi/driver_kinds.h'} for folder in 'api base bench cli conformance criu health process'.split()},
}
# The one header that names the software GPU. The kernel is compiled for it, too.
KINDS = 'abi/driver_kinds.h'
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
COMMENT = re.compile(r'//.*')
SUFFIXES = {'.cc', '.h', '.c', '.cu', '.def'}


def is_product(path):
    is_test = path.stem.endswith(('_test', '_testing', '_fuzz')) or 'testing' in path.parts
    return path.suffix in SUFFIXES and not is_test


def main():
    source = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else '.') / 'src'
    order = list(ALLOWED)
    errors = []
    for folder, allowed in ALLOWED.items():
        for name in allowed.split():
            if order.index(name) < order.index(folder):
                errors.append(f'the table lets {folder}/ include {name}/, which stands above it')
    used = {folder: set() for folder in ALLOWED}
    for path in sorted(source.rglob('*')):
        if not path.is_file() or not is_product(path.relative_to(source)) or len(path.relative_to(source).parts) < 2:
            continue
        folder = path.relative_to(source).parts[0]
        if folder not in ALLOWED:
            errors.append(f'{path}: the table has no row for {folder}/')
            continue
        text = path.read_text(errors='replace')
        names_softgpu = 'softgpu' in COMMENT.sub('', text).lower()
        if names_softgpu and path.suffix != '.cu' and path.relative_to(source).as_posix() != KINDS:
            errors.append(f'{path}: names softgpu, which only a row of {KINDS} may do')
        for included in INCLUDE.findall(text):
            target = included.split('/')[0]
            if target == folder or not (source / target).is_dir() or '/' not in included:
                continue
            used[folder].add(target)
            if target not in ALLOWED[folder].split():
                errors.append(f'{path}: {folder}/ may not include {target}/ ({included})')
            elif included not in ONLY.get((folder, target), {included}):
                errors.append(f'{path}: {folder}/ may not include {included} of {target}/')
    for folder, allowed in ALLOWED.items():
        for name in sorted(set(allowed.split()) - used[folder]):
            errors.append(f'the table lets {folder}/ include {name}/, and nothing does any more: shorten its row')
    for error in errors:
        print(error)
    print(f'{len(ALLOWED)} folders, {sum(map(len, used.values()))} dependencies, {len(errors)} errors')
    return 1 if errors else 0


if __name__ == '__main__':
    sys.exit(main())
