//! Users whose programs keep files of closed ports from being closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::control::closings::UNCLOSED_MAX;
use crate::control::datapath::closings::Unclosed;

const UID: u32 = 1000;

impl Bench {
    /// A daemon in which this user has so many files that are not closed.
    fn with_unclosed(uid: u32, count: u32) -> (Self, Unclosed) {
        let (mut bench, unclosed) = (Self::new(), Unclosed::new(count.into()));
        bench.control.datapath.unclosed.insert(uid, unclosed.clone());
        (bench, unclosed)
    }
}

#[test]
fn test_a_user_with_many_files_to_close_gets_no_port_that_leaves_another() {
    for uid in [UID, 0] {
        let (mut bench, unclosed) = Bench::with_unclosed(uid, UNCLOSED_MAX + 1);
        let attached = ["vale0:a{1", "vale0:c"].map(|port| bench.attach(1, uid, port).unwrap_err());
        let bound = bench.bind(2, uid, "vale0:b").unwrap_err();
        for refusal in attached.into_iter().chain([bound]) {
            let text = refusal.to_string();
            assert_eq!(refusal.code(), ErrorCode::Quota, "{text}");
            assert!(text.contains("65 files") && text.contains("end them"), "{text}");
        }
        assert!(bench.is_empty(), "nothing is left of them");
        for other in ["vale1:a{1", "vale1:a}1"] {
            bench.attach(4, UID + 1, other).expect("another user");
        }
        bench.bind(5, UID + 1, "vale1:b").expect("another user");
        unclosed.store(UNCLOSED_MAX, Ordering::Relaxed);
        bench.attach(1, uid, "vale0:a{1").expect("few are left");
        bench.bind(2, uid, "vale0:b").expect("few are left");
        bench.attach(3, uid, "vale0:c").expect("few are left");
    }
}

#[test]
fn test_a_user_whose_files_are_closed_soon_waits_for_that() {
    let (mut bench, unclosed) = Bench::with_unclosed(UID, 2 * UNCLOSED_MAX);
    let attach =
        Request::Session(SessionRequest::Attach(Attach::new("vale0:a{1".parse().unwrap())));
    let step = bench.control.call(&mut client(1, UID), attach);
    let closer = Arc::clone(&unclosed);
    std::thread::spawn(move || closer.store(0, Ordering::Relaxed)).join().unwrap();
    bench.follow(1, step).expect("all are closed");
}
