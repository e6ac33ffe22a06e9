//! The page for users says what the code says.

use protocol::DROP_REASONS;

#[test]
fn the_page_on_switching_has_every_reason_for_a_drop() {
    let page = include_str!("../../../docs/switching.md");
    let (_, rest) = page.split_once("<!-- reasons: begin -->\n").expect("a beginning");
    let (table, _) = rest.split_once("<!-- reasons: end -->").expect("an end");
    let rows: Vec<&str> = table.lines().skip(2).collect();
    let expected =
        DROP_REASONS.map(|r| format!("| `{}` | {} | {} |", r.name, r.explanation, r.cure));
    assert_eq!(rows, expected);
}
