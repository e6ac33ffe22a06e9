//! The web page of `uvala-http`, in a real browser.

use std::time::Duration;

use harness::browser::Browser;
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::http::Http;
use harness::{skip, wait};
use serde_json::json;

/// What a command says that fails, without the program's name.
fn said(output: &std::process::Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("uvala: ").to_owned()
}

/// The browser at a view; `None`: there is none.
fn browser(http: &Http, width: u32, view: &str) -> Option<Browser> {
    let mut page = Browser::start(width);
    match &mut page {
        Some(page) => {
            page.open(&format!("http://{}/#token={}", http.address, http.write));
            page.until("document.title === 'Ports – uvala'");
            page.open(&format!("http://{}/#/{view}", http.address));
        }
        None => skip("no Chromium: apt install chromium"),
    }
    page
}

#[test]
fn a_browser_shows_rates_finds_addresses_adds_ports_and_says_why_not() {
    let daemon = Setup::new("[switch.vale0.port.vm1]\n[switch.vale0.port.vm2]\n").start();
    let http = Http::start(&daemon);
    let Some(mut page) = Browser::start(1000) else {
        return skip("no Chromium: apt install chromium");
    };
    let sender = || {
        let (mut a, mut b) = (daemon.open("vale0:vm1"), daemon.open("vale0:vm2"));
        move || {
            let mut frame = Vec::new();
            for _ in 0..10 {
                a.send(&announcement(1)).unwrap();
                while b.recv_timeout(&mut frame, Some(Duration::ZERO)).unwrap() {}
            }
        }
    };
    let mut send = sender();
    page.open(&format!("http://{}/#token={}", http.address, http.write));
    page.until("document.querySelectorAll('tbody tr').length === 2");
    // A rate that changes.
    let row = "document.querySelector('tbody tr').innerText";
    page.until(&format!("{row}.includes('vale0:vm1') && {row}.includes('0/s')"));
    wait::until("a rate", || {
        send();
        page.value(&format!("/[1-9][0-9.]*( k)?\\/s/.test({row})")) == true
    });
    page.until("document.querySelector('svg.history path').getAttribute('d').includes('L')");
    // A port, by the keyboard.
    page.fill("input[name=port]", "vale0:vm3");
    page.press("Enter");
    page.until("document.querySelector('main').innerText.includes('vale0:vm3')");
    assert!(daemon.port("vale0:vm3").is_some_and(|port| port.persistent));
    page.until("document.getElementById('status').innerText.includes('added')");
    // A name that is none, with the words of the command line.
    page.fill("input[name=port]", "eth0");
    page.press("Enter");
    page.until("document.querySelector('form [role=alert]').innerText !== ''");
    let alert = page.value("document.querySelector('form [role=alert]').innerText");
    let alert = alert.as_str().unwrap();
    assert!(said(&daemon.uvala(&["port", "add", "eth0"])).contains(alert), "{alert}");
    assert_eq!(page.value("document.activeElement.getAttribute('aria-invalid')"), "true");
    // An address.
    page.open(&format!("http://{}/#/addresses", http.address));
    page.until("document.querySelectorAll('tbody tr').length === 1");
    page.fill("input[type=search]", "no such address");
    page.until("document.querySelectorAll('tbody tr').length === 0");
    page.value("document.querySelector('input[type=search]').select()");
    page.fill("input[type=search]", "00:01");
    page.until("document.querySelector('tbody tr').innerText.includes('vale0:vm1')");
    // Each view has a title, and each field a label.
    let views = ["", "map", "drops", "chains", "events", "port/vale0%3Avm1"];
    let titles = ["Ports", "Map", "Drops", "Chains", "Events", "vale0:vm1"];
    for (view, title) in views.into_iter().zip(titles) {
        page.open(&format!("http://{}/#/{view}", http.address));
        page.until(&format!("document.title === '{title} – uvala'"));
        let fields = "[...document.querySelectorAll('input,select')]";
        let unnamed = page.value(&format!("{fields}.filter((it) => !it.labels.length).length"));
        assert_eq!(unnamed, 0, "{view}");
    }
    page.until("document.querySelector('dl.facts').innerText.includes('shm')");
}

/// Sends frames from one port to another, back and forth, a few at each call.
fn traffic(daemon: &Daemon) -> impl FnMut() {
    let mut ports = ["vale0:vm1", "vale0:vm2"].map(|name| daemon.open(name));
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    move || {
        for station in [1, 2] {
            for number in 0..10 {
                fill(&mut sent, mac(3 - station), station, number, 100);
                ports[0].send(&sent).unwrap();
            }
            while ports[1].recv_timeout(&mut got, Some(Duration::ZERO)).unwrap() {}
            ports.reverse();
        }
    }
}

#[test]
fn a_browser_shows_frames_of_a_port_while_it_looks_and_the_last_hour() {
    let daemon = Setup::new("[switch.vale0.port.vm1]\n[switch.vale0.port.vm2]\n").start();
    let http = Http::start(&daemon);
    let Some(mut page) = browser(&http, 1000, "port/vale0%3Avm1") else { return };
    let mut send = traffic(&daemon);
    page.until("document.querySelector('form[aria-label=Frames]')");
    // A filter that is none has libpcap's words.
    let alert = "document.querySelector('form[aria-label=Frames] [role=alert]').innerText";
    page.fill("input[name=filter]", "udp prt 53");
    page.press("Enter");
    page.until(&format!("{alert}.includes('syntax error')"));
    page.value("document.querySelector('input[name=filter]').select()");
    page.fill("input[name=filter]", "ether proto 0x88b5");
    page.press("Enter");
    page.until("document.querySelector('form[aria-label=Frames] button').innerText === 'Stop'");
    let line = "document.querySelector('ol.frames li')?.innerText ?? ''";
    wait::until("a frame", || {
        send();
        page.value(line).as_str().is_some_and(|line| line.contains("ethertype 0x88b5, 100 bytes"))
    });
    page.until("document.querySelectorAll('ol.frames li').length <= 200");
    // It ends with the view.
    page.open(&format!("http://{}/#/", http.address));
    page.until("document.title === 'Ports – uvala'");
    page.open(&format!("http://{}/#/port/vale0%3Avm1", http.address));
    wait::until("a step of the last hour", || {
        send();
        page.value("/minutes: sent [1-9]/.test(document.querySelector('main').innerText)") == true
    });
    // Both lines have scales.
    let scale = "document.querySelector('.graph').innerText.replace(/\\s+/g, ' ')";
    page.until(&format!("/^[125]0* ?k?\\/s 0 [0-9]+ s ago now$/.test({scale})"));
    page.until("document.querySelectorAll('.graph .top').length === 2");
}

#[test]
fn a_browser_shows_a_map_with_rates_and_the_traffic_between_ports() {
    let daemon = Setup::new("[switch.vale0.port.vm1]\n[switch.vale0.port.vm2]\n").start();
    let http = Http::start(&daemon);
    let Some(mut page) = browser(&http, 1000, "map") else { return };
    let mut send = traffic(&daemon);
    page.until("document.querySelectorAll('svg.map a').length === 2");
    // Screen readers get the picture as a group of named links.
    let label = "document.querySelector('svg.map a').getAttribute('aria-label') ?? ''";
    let is_busy =
        format!("/^vale0:vm1, sends [1-9][0-9.]*( k)?\\/s, receives [1-9]/.test({label})");
    wait::until("a rate", || {
        send();
        page.value(&is_busy) == true
    });
    page.until("document.querySelector('svg.map').getAttribute('aria-label').includes('2 ports')");
    page.value("document.querySelector('button[aria-pressed]').focus()");
    page.press("Enter");
    let rows = "[...document.querySelectorAll('main tbody tr')].map((it) => it.innerText).join()";
    wait::until("traffic between the ports", || {
        send();
        let rows = page.value(rows);
        let has = |from: &str, to: &str| {
            let rows = rows.as_str().unwrap_or_default().replace(['\t', '\n'], " ");
            rows.contains(&format!("{from} {to}"))
        };
        has("vale0:vm1", "vale0:vm2") && has("vale0:vm2", "vale0:vm1")
    });
    page.until("document.querySelectorAll('svg.map .edges path').length === 2");
    // By the keyboard to a port.
    page.value("document.querySelector('svg.map a').focus()");
    page.press("Enter");
    page.until("document.title === 'vale0:vm1 – uvala'");
}

#[test]
fn a_hidden_tab_counts_and_draws_nothing_until_it_is_seen() {
    let daemon = Setup::new("[switch.vale0.port.vm1]\n[switch.vale0.port.vm2]\n").start();
    let http = Http::start(&daemon);
    let Some(mut page) = browser(&http, 1000, "") else { return };
    let mut send = traffic(&daemon);
    let row = "document.querySelector('tbody tr').innerText";
    wait::until("a rate", || {
        send();
        page.value(&format!("/[1-9][0-9.]*( k)?\\/s/.test({row})")) == true
    });
    let kept = "import('/live.js').then((it) => it.live.get('vale0:vm1').history.length)";
    page.value(
        "window.changes = 0;
        new MutationObserver((list) => { window.changes += list.length; }).observe(document,
            {subtree: true, childList: true, characterData: true, attributes: true});
        Object.defineProperty(document, 'hidden', {value: true, configurable: true})",
    );
    let before = page.value(kept).as_u64().unwrap();
    wait::until("two more rates", || {
        send();
        page.value(kept).as_u64().unwrap() >= before + 2
    });
    assert_eq!(page.value("window.changes"), 0);
    page.value("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))");
    page.until("window.changes > 0");
}

#[test]
fn a_browser_brings_ports_out_of_sight_up_to_date_as_they_come_into_sight() {
    let others: String =
        (1..60).map(|n| format!("[switch.vale0.port.a{n}]\nkind = \"null\"\n")).collect();
    let ports = others + "[switch.vale0.port.vm1]\n[switch.vale0.port.vm2]\n";
    let daemon = Setup::new(&ports).start();
    let http = Http::start(&daemon);
    let Some(mut page) = browser(&http, 1000, "") else { return };
    let mut send = traffic(&daemon);
    page.until("document.querySelectorAll('tbody tr').length === 61");
    page.value("document.querySelector('tbody tr:last-child').scrollIntoView()");
    let row = "document.querySelector('tbody tr:last-child').innerText";
    wait::until("a rate", || {
        send();
        page.value(&format!("/[1-9][0-9.]*( k)?\\/s/.test({row})")) == true
    });
}

#[test]
fn every_view_fits_a_phone_in_light_and_dark() {
    let ports: String = (1..40).map(|n| format!("[switch.vale0.port.machine{n}]\n")).collect();
    let daemon = Setup::new(&ports).start();
    let http = Http::start(&daemon);
    let Some(mut page) = browser(&http, 1000, "") else { return };
    let phone = json!({"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": true});
    page.call("Emulation.setDeviceMetricsOverride", phone);
    let mut colours = Vec::new();
    for scheme in ["light", "dark"] {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        page.call("Emulation.setEmulatedMedia", features);
        for (view, title) in [
            ("", "Ports"),
            ("map", "Map"),
            ("addresses", "Addresses"),
            ("drops", "Drops"),
            ("chains", "Chains"),
            ("events", "Events"),
            ("port/vale0%3Amachine1", "vale0:machine1"),
        ] {
            page.open(&format!("http://{}/#/{view}", http.address));
            page.until(&format!("document.title === '{title} – uvala'"));
            page.until("document.documentElement.scrollWidth <= 360");
        }
        colours.push(page.value("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(colours[0], colours[1]);
}
