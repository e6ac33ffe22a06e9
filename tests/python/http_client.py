"""Drives uvala-http by a client that openapi-python-client has generated of its description."""

import sys

from uvala_api import AuthenticatedClient
from uvala_api.api.daemon import daemon
from uvala_api.api.ports import (
    add_port,
    delete_port,
    list_ports,
    port_history,
    set_port,
    show_port,
    stats,
)
from uvala_api.api.switches import add_switch, delete_switch, fdb, list_switches, show_switch
from uvala_api.models import PortAdd, PortSettings, Problem, SwitchSpec

ADDRESS, WRITE, READ = sys.argv[1:]


def main() -> None:
    client = AuthenticatedClient(base_url=ADDRESS, token=WRITE)
    assert daemon.sync(client=client).pid > 0

    # A switch with two ports.
    made = add_switch.sync_detailed(client=client, body=SwitchSpec(switch="vale0"))
    assert made.status_code == 201, made
    for name in ("vale0:kept", "vale0:gone"):
        made = add_port.sync_detailed(client=client, body=PortAdd(port=name))
        assert made.status_code == 201, made
    assert made.headers["location"] == "/v1/ports/vale0:gone"
    shown = show_switch.sync(switch="vale0", client=client)
    assert (shown.switch, shown.ports) == ("vale0", 2), shown
    assert [it.switch for it in list_switches.sync(client=client).items] == ["vale0"]
    listed = list_ports.sync(client=client, switch="vale0")
    assert sorted(it.port for it in listed.items) == ["vale0:gone", "vale0:kept"], listed

    # Changes and counters.
    changed = set_port.sync_detailed("vale0:kept", client=client, body=PortSettings(isolated=True))
    assert changed.status_code == 204, changed
    assert show_port.sync("vale0:kept", client=client).settings.isolated is True
    counters = stats.sync(client=client, port="vale0:kept").items[0]
    assert (counters.tx.frames, counters.rx.frames) == (0, 0), counters
    assert port_history.sync("vale0:kept", client=client).step_s == 10
    assert fdb.sync("vale0", client=client).items == []

    # Errors are problems, with a line to read and a word to compare.
    twice = add_port.sync(client=client, body=PortAdd(port="vale0:kept"))
    assert isinstance(twice, Problem) and (twice.status, twice.code) == (409, "exists"), twice
    missing = show_port.sync("vale0:nothing", client=client)
    assert isinstance(missing, Problem) and missing.code == "not_found", missing
    wrong = add_port.sync(client=client, body=PortAdd(port="eth0"))
    assert isinstance(wrong, Problem) and wrong.code == "bad_name" and wrong.detail, wrong
    looker = AuthenticatedClient(base_url=ADDRESS, token=READ)
    assert isinstance(delete_switch.sync_detailed("vale0", client=looker).parsed, Problem)
    stranger = AuthenticatedClient(base_url=ADDRESS, token="no such token")
    refused = list_ports.sync_detailed(client=stranger)
    assert refused.status_code == 401 and refused.parsed.code == "token", refused

    gone = delete_port.sync_detailed("vale0:gone", client=client)
    assert gone.status_code == 204, gone


main()
