//! A list under heads, of which a window around the cursor is seen.

use std::ops::Range;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// The text of a cell that has room for so many characters.
type Cell<'a, T> = Box<dyn Fn(&T, usize) -> Span<'static> + 'a>;

/// A column.
pub struct Column<'a, T> {
    head: &'a str,
    /// `None`: all that is left of the line.
    width: Option<u16>,
    is_right: bool,
    /// The narrowest area that has it.
    from: u16,
    is_marked: bool,
    cell: Cell<'a, T>,
}

/// A column of words.
pub fn left<'a, T, S: Into<Span<'static>>>(
    head: &'a str,
    width: u16,
    cell: impl Fn(&T) -> S + 'a,
) -> Column<'a, T> {
    let cell = Box::new(move |row: &T, _| cell(row).into());
    Column { head, width: Some(width), is_right: false, from: 0, is_marked: false, cell }
}

/// A column of numbers.
pub fn right<'a, T, S: Into<Span<'static>>>(
    head: &'a str,
    width: u16,
    cell: impl Fn(&T) -> S + 'a,
) -> Column<'a, T> {
    Column { is_right: true, ..left(head, width, cell) }
}

/// A column that takes all that is left of the line.
pub fn rest<'a, T, S: Into<Span<'static>>>(
    head: &'a str,
    cell: impl Fn(&T, usize) -> S + 'a,
) -> Column<'a, T> {
    let cell = Box::new(move |row: &T, width| cell(row, width).into());
    Column { head, width: None, is_right: false, from: 0, is_marked: false, cell }
}

impl<T> Column<'_, T> {
    /// This column, in areas that are at least so wide.
    pub fn from(self, width: u16) -> Self {
        Self { from: width, ..self }
    }

    /// This column, by which rows are sorted if `head` is its own.
    pub fn marked(self, head: &str) -> Self {
        Self { is_marked: self.head == head, ..self }
    }
}

/// Draws heads and rows.
pub fn draw<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[Column<'_, T>],
    rows: &[T],
    cursor: Option<usize>,
) {
    let columns: Vec<_> = columns.iter().filter(|column| column.from <= area.width).collect();
    let taken: u16 = columns.iter().map(|column| column.width.unwrap_or(0) + 1).sum();
    let left = area.width.saturating_sub(taken.saturating_sub(1));
    let widths: Vec<_> =
        columns.iter().map(|column| usize::from(column.width.unwrap_or(left))).collect();
    let cells = |cell: &dyn Fn(&Column<'_, T>, usize) -> Span<'static>| {
        let cells = columns.iter().zip(&widths);
        let spans = cells.flat_map(|(column, width)| {
            [padded(cell(column, *width), *width, column.is_right), Span::raw(" ")]
        });
        Line::from_iter(spans)
    };
    let head = cells(&|column, _| {
        let mark = if column.is_marked { Modifier::UNDERLINED } else { Modifier::empty() };
        Span::styled(column.head.to_owned(), Style::new().add_modifier(Modifier::BOLD | mark))
    });
    put(frame, area, 0, &head);
    let height = usize::from(area.height.saturating_sub(1));
    let seen = window(cursor.unwrap_or(0), rows.len(), height);
    // Behind the head of the last column.
    let place = format!("{}-{} of {}", seen.start + 1, seen.end, rows.len());
    let width = u16::try_from(place.len()).unwrap_or(u16::MAX);
    if seen.len() < rows.len() && width + 10 < left {
        let right = Rect { x: area.right() - width, width, ..area };
        put(frame, right, 0, &Line::from(place));
    }
    for (at, y) in seen.zip(1..) {
        let line = cells(&|column, width| (column.cell)(&rows[at], width));
        put(frame, area, y, &line);
        if cursor == Some(at) {
            let row = Rect { y: area.y + y, height: 1, ..area };
            frame.buffer_mut().set_style(row, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
}

/// Writes a line into an area, if it has a row of this number.
pub fn put(frame: &mut Frame<'_>, area: Rect, y: u16, line: &Line<'_>) {
    if y < area.height {
        frame.buffer_mut().set_line(area.x, area.y + y, line, area.width);
    }
}

/// A cell as wide as its column.
fn padded(cell: Span<'static>, width: usize, is_right: bool) -> Span<'static> {
    // Characters may be two columns wide, or none.
    let columns = |text: &str| Span::raw(text).width();
    let mut text: String = cell.content.chars().filter(|letter| !letter.is_control()).collect();
    if columns(&text) > width {
        while columns(&text) >= width && text.pop().is_some() {}
        text.push('…');
    }
    let space = " ".repeat(width.saturating_sub(columns(&text)));
    Span::styled(if is_right { space + &text } else { text + &space }, cell.style)
}

/// A name in so many characters, without its middle where it is longer: names differ at their ends.
pub fn middle(name: &str, width: usize) -> String {
    let length = name.chars().count();
    let (head, tail) = (width / 2, (width - width / 2).saturating_sub(1));
    let ends = || name.chars().take(head).chain(['…']).chain(name.chars().skip(length - tail));
    if length > width { ends().collect() } else { name.to_owned() }
}

/// The rows that are seen: the cursor is among them.
fn window(cursor: usize, rows: usize, height: usize) -> Range<usize> {
    let last = rows.saturating_sub(height);
    let start = cursor.saturating_sub(height / 2).min(last);
    start..(start + height).min(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_window_has_the_cursor_and_is_full() {
        assert_eq!(window(0, 3, 10), 0..3);
        assert_eq!(window(0, 100, 10), 0..10);
        assert_eq!(window(50, 100, 10), 45..55);
        assert_eq!(window(99, 100, 10), 90..100);
        assert_eq!(window(5, 100, 0), 5..5);
    }

    #[test]
    fn test_cells_are_as_wide_as_their_column_whatever_is_in_them() {
        for text in
            ["", "vale0:a", "vale0:a-long-name", "日本語の名前", "a\u{1b}[2Jb", "e\u{301}\u{202e}x"]
        {
            for is_right in [false, true] {
                let cell = padded(Span::raw(text), 9, is_right);
                assert_eq!(cell.width(), 9, "{text:?}: {:?}", cell.content);
                assert!(!cell.content.contains(char::is_control), "{:?}", cell.content);
            }
        }
        assert_eq!(padded(Span::raw("vale0:a-long"), 8, false).content, "vale0:a…");
        assert_eq!(padded(Span::raw("12"), 4, true).content, "  12");
    }

    #[test]
    fn test_long_names_keep_both_ends() {
        assert_eq!(middle("vale1:port_17", 13), "vale1:port_17");
        assert_eq!(middle("vale1:a_long_port_17", 12), "vale1:…rt_17");
        assert_eq!(middle("vale1:a_long_port_17", 12).chars().count(), 12);
    }
}
