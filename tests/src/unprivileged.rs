//! A shell of an ordinary user in a user namespace, as for `podman unshare`: a switch, a TAP on it,
//! and the namespace of a process.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::process::{Scratch, uvala_path};
use crate::skip;

/// The user `nobody`, without groups.
const USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
/// `$within` begins a command in the process's namespace.
const BEGIN: &str = "
    export UVALA_DIR=$PLACE/run
    ip link set lo up
    $UVALA daemon --background > /dev/null
    trap 'kill $guest $(cat $UVALA_DIR/uvala.lock)' EXIT
    unshare --net sleep 60 &
    guest=$!
    while test $(readlink /proc/$guest/ns/net) = $(readlink /proc/self/ns/net); do sleep 0.01; done
    within=\"nsenter -t $guest --net\"
    $UVALA port add vale0:host --kind tap --address 10.0.0.254/24
    $UVALA ns attach $guest vale0:web --address 10.0.0.253/24 --gateway 10.0.0.254
";
const END: &str = "
    for try in $(seq 100); do
        $within bash -c 'echo > /dev/udp/10.0.0.254/9'
        sleep 0.05
        $within ip neigh show 10.0.0.254 | grep lladdr && exit 0
    done
    exit 9";

/// Sets the switch up, carries out `commands`, and finds that the process reaches the host.
///
/// # Panics
/// If that fails.
pub fn run(commands: &str) {
    let can = Command::new("setpriv").args(USER).args(["unshare", "-Urn", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return skip("needs root, to become another user, and unprivileged user namespaces");
    }
    let place = Scratch::new("unprivileged");
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(place.path(), all).expect("ours");
    let copy = place.path().join("uvala");
    std::fs::copy(uvala_path(), &copy).expect("room");
    let mut shell = Command::new("setpriv");
    let script = [BEGIN, commands, END].concat();
    shell.args(USER).args(["unshare", "-Urn", "bash", "-euc", &script]);
    let output = shell.env("UVALA", copy).env("PLACE", place.path()).output().expect("setpriv");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("lladdr"), "an answer: {text}");
}
