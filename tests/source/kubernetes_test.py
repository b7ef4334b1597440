#!/usr/bin/env python3
"""packaging/kubernetes/stasis.yaml: valid YAML, with the fields that it needs; its scripts are valid shell.

usage: tests/source/kubernetes_test.py CHECKOUT
"""

import pathlib
import subprocess
import sys

import yaml


def check(condition, message):
    if not condition:
        sys.exit(message)


def main(root):
    documents = list(yaml.safe_load_all((root / 'packaging/kubernetes/stasis.yaml').read_text()))
    check([document['kind'] for document in documents] == ['Namespace', 'DaemonSet'], 'its objects')
    daemon_set = documents[1]
    check(daemon_set['metadata']['namespace'] == documents[0]['metadata']['name'], 'its namespace')
    spec = daemon_set['spec']
    check(spec['selector']['matchLabels'].items() <= spec['template']['metadata']['labels'].items(), 'its selector')
    pod = spec['template']['spec']
    install = pod['initContainers'][0]
    check(pod['hostPID'] and install['securityContext']['privileged'], 'nsenter needs these')
    mounted = {mount['name'] for mount in install['volumeMounts']}
    check(mounted <= {volume['name'] for volume in pod['volumes']}, f'a volume is missing: {mounted}')
    script = install['command'][2]
    inner = script[script.index("'") + 1:script.rindex("'")]
    for text in (script, inner):
        subprocess.run(['sh', '-n', '-c', text], check=True)
    check("'" not in inner, 'a quote would end the inner script')
    service = (root / 'packaging/systemd/stasisd.service').read_text()
    check('ExecStart=/opt/stasis/bin/stasisd' in service and '/opt/stasis' in inner, 'the folder of the service')
    print('all tests passed')


if __name__ == '__main__':
    main(pathlib.Path(sys.argv[1]))
