//! What a machine's VMM was told: its command line.

use packet::MacAddr;

/// Whether the process is a VMM. Its program may be run by another, as a loader.
pub fn is_vmm(words: &[String]) -> bool {
    let file = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    let is_one = |name: String| {
        ["qemu", "kvm", "cloud-hypervisor", "crosvm"].iter().any(|known| name.starts_with(known))
    };
    words.iter().map(file).any(is_one)
}

/// Whether the command line is QEMU's.
pub fn is_qemu(words: &[String]) -> bool {
    words.iter().any(|word| word.contains("qemu"))
}

/// Whether the command line names this socket.
pub fn names(words: &[String], socket: &str) -> bool {
    words.iter().any(|word| word_names(word, socket))
}

fn word_names(word: &str, socket: &str) -> bool {
    let told = format!("={}", socket.replace(',', ",,"));
    let is_end = |rest: &str| rest.is_empty() || (rest.starts_with(',') && !rest.starts_with(",,"));
    word.match_indices(&told).any(|(at, _)| is_end(&word[at + told.len()..]))
}

/// What an option was given, each time that it was: with one dash, or two.
pub fn options<'a>(
    words: &'a [String],
    option: &'static str,
) -> impl Iterator<Item = &'a str> + Clone {
    let is_it = move |word: &str| {
        let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        name == Some(option)
    };
    words.windows(2).filter(move |pair| is_it(&pair[0])).map(|pair| &*pair[1])
}

/// How QEMU was told to reach a socket, by the name of its `-netdev`.
pub fn way<'a>(words: &'a [String], socket: &str) -> Option<&'a str> {
    let kind = |netdev: &'a str| value(netdev, "type").or_else(|| netdev.split(',').next());
    if let Some(netdev) = options(words, "netdev").find(|word| word_names(word, socket)) {
        return kind(netdev);
    }
    let chardev = options(words, "chardev").find(|word| word_names(word, socket))?;
    let id = value(chardev, "id")?;
    kind(options(words, "netdev").find(|word| value(word, "chardev") == Some(id))?)
}

/// The address of the card behind a socket.
pub fn address(words: &[String], socket: &str) -> Option<MacAddr> {
    if !is_qemu(words) {
        return value(words.iter().find(|word| word_names(word, socket))?, "mac")?.parse().ok();
    }
    let mut told = options(words, "netdev").chain(options(words, "chardev"));
    let id = value(told.find(|word| word_names(word, socket))?, "id")?;
    // Of a chardev, the netdev's.
    let behind = options(words, "netdev").find(|word| value(word, "chardev") == Some(id));
    let id = behind.map_or(Some(id), |netdev| value(netdev, "id"))?;
    let mut last = 0x56_u8;
    for device in options(words, "device") {
        let (Some(netdev), mac) = (value(device, "netdev"), value(device, "mac")) else { continue };
        match mac {
            Some(mac) if netdev == id => return mac.parse().ok(),
            // QEMU counts those that have none.
            None if netdev == id => return Some(MacAddr::new([0x52, 0x54, 0, 0x12, 0x34, last])),
            Some(_) => {}
            None => last = last.wrapping_add(1),
        }
    }
    None
}

/// Paths below a directory that it was told and that end so.
pub fn paths<'a>(words: &'a [String], dir: &str, end: &'a str) -> impl Iterator<Item = String> {
    let told = format!("={}/", dir.replace(',', ",,"));
    words.iter().filter_map(move |word| {
        let at = word.find(&told)? + 1;
        let rest = word[at..].replace(",,", "\0");
        let path = rest.split(',').next().unwrap_or_default().replace('\0', ",");
        path.ends_with(end).then_some(path)
    })
}

/// The word with this value of a key.
pub fn with<'a>(words: &'a [String], key: &str, wanted: &str) -> Option<&'a String> {
    words.iter().find(|word| value(word, key) == Some(wanted))
}

/// A value in one of QEMU's words, which may be JSON.
pub fn value<'a>(word: &'a str, key: &str) -> Option<&'a str> {
    if word.starts_with('{') {
        let rest = word.split_once(&format!("\"{key}\":"))?.1;
        return rest.split([',', '}']).next().map(|value| value.trim_matches([' ', '"']));
    }
    word.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn test_a_vmm_is_found_by_what_it_was_told() {
        let path = "/run/uvala/vale0:vm1.sock";
        let qemu = words(&format!("qemu-system-x86_64 -chardev socket,id=c,path={path}"));
        assert!(is_vmm(&qemu) && is_qemu(&qemu) && names(&qemu, path));
        assert!(!names(&qemu, "/run/uvala/vale0:vm1") && !names(&qemu, "vale0:vm1.sock"));
        assert!(names(&words("-x path=/a,,b,server=on"), "/a,b"));
        assert!(!names(&words("path=/a,,b"), "/a"));
    }

    #[test]
    fn test_the_way_to_a_socket_is_that_of_its_netdev() {
        let way = |text: &str| way(&words(text), "/s").map(str::to_owned);
        let chardev = "-chardev socket,id=c,path=/s";
        assert_eq!(
            way(&format!("{chardev} -netdev vhost-user,chardev=c")),
            Some("vhost-user".into())
        );
        let json = "-netdev {\"type\":\"vhost-user\",\"chardev\":\"c\"}";
        assert_eq!(way(&format!("{chardev} {json}")), Some("vhost-user".into()));
        assert_eq!(way("-netdev stream,id=n,addr.path=/s"), Some("stream".into()));
        assert_eq!(way("-netdev id=n,type=dgram,remote.path=/s"), Some("dgram".into()));
        assert_eq!((way(chardev), way("-netdev stream,addr.path=/other")), (None, None));
    }

    #[test]
    fn test_cards_without_an_address_are_counted_by_qemu() {
        let of = |devices: &str| {
            let line = "qemu -chardev socket,id=c,path=/s -netdev vhost-user,id=n,chardev=c";
            address(&words(&format!("{line} {devices}")), "/s").map(|mac| mac.to_string())
        };
        let (first, second) = ("52:54:00:12:34:56", "52:54:00:12:34:57");
        assert_eq!(of("-device e1000,netdev=n").as_deref(), Some(first));
        assert_eq!(of("-device a,netdev=m -device b,netdev=n").as_deref(), Some(second));
        let named = format!("-device a,netdev=m,mac={second} -device b,netdev=n");
        assert_eq!(of(&named).as_deref(), Some(first));
        let named = format!("-device a,netdev=n,mac={second}");
        assert_eq!(of(&named).as_deref(), Some(second));
        assert_eq!(of("-device usb-tablet"), None);
        let cloud = words(&format!("cloud-hypervisor --net mac={first},socket=/s"));
        assert_eq!(address(&cloud, "/s").map(|mac| mac.to_string()).as_deref(), Some(first));
    }

    #[test]
    fn test_options_have_one_dash_or_two_and_values_may_be_json() {
        let line = words("-m 1G --object a,id=x -object {\"qom-type\":\"b\",\"id\":\"y\"} -o z");
        let ids: Vec<_> = options(&line, "object").map(|word| value(word, "id")).collect();
        assert_eq!(ids, [Some("x"), Some("y")]);
        assert_eq!(value("{\"share\":true}", "share"), Some("true"));
        assert_eq!((value("a,bid=1", "id"), value("{}", "id")), (None, None));
    }
}
