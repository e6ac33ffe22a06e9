//! The next daemon.

use protocol::HandedOver;

use super::*;

#[test]
fn test_only_root_and_the_daemons_user_replace_it() {
    let mut bench = Bench::new();
    for call in [r#"{"hand_over":{}}"#, r#""end""#] {
        let (code, message) = bench.refused(1, 1000, call);
        assert_eq!(code, ErrorCode::Permission);
        assert!(message.contains("only root and the daemon's user"), "{message}");
    }
    let (code, message) = bench.refused(1, 0, r#"{"hand_over":{"from":"x"}}"#);
    assert!(code == ErrorCode::BadRequest && message.contains("from: "), "{message}");
    let none = HandedOver { name: None, next: None };
    assert_eq!(bench.ask(1, 0, r#"{"hand_over":{}}"#).unwrap(), Reply::HandedOver(none));
    assert!(!bench.control.is_ending());
    bench.done(r#""end""#);
    assert!(bench.control.is_ending());
}
