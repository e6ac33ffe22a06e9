//! Tables for people: columns as wide as they need to be, two spaces between them.
//!
//! On a terminal that is too narrow, columns that say nothing are left out. If that is not enough,
//! those that find no room stand below their rows, each behind its head:
//!
//! ```text
//! PORT             KIND  VLAN                       PORT             KIND
//! vale0:a-printer  tap   trunk:1,10-20,native=1     vale0:a-printer  tap
//!                                                       VLAN trunk:1,10-20,native=1
//! ```

use std::fmt;

use crate::say;

/// On which side of its column a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// What a table says of each of its items, under a head.
#[derive(Clone, Copy, Debug)]
pub struct Column<T> {
    head: &'static str,
    align: Align,
    value: fn(&T) -> String,
}

/// A column of words.
pub fn left<T>(head: &'static str, value: fn(&T) -> String) -> Column<T> {
    Column { head, align: Align::Left, value }
}

/// A column of numbers.
pub fn right<T>(head: &'static str, value: fn(&T) -> String) -> Column<T> {
    Column { head, align: Align::Right, value }
}

/// A word for whether.
pub fn yes(whether: bool) -> String {
    if whether { "yes" } else { "no" }.to_owned()
}

/// What there is, or a dash.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Rows under heads.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// A row for each item.
    pub fn of<T>(items: &[T], columns: &[Column<T>]) -> Self {
        let heads: Vec<_> = columns.iter().map(|column| (column.head, column.align)).collect();
        let mut table = Self::new(&heads);
        for item in items {
            table.row(columns.iter().map(|column| (column.value)(item)));
        }
        table
    }

    /// Adds a row, with a value for each column.
    pub fn row(&mut self, values: impl IntoIterator<Item = String>) {
        let row: Vec<String> = values.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "a value for each column");
        self.rows.push(row);
    }

    fn width(&self, column: usize) -> usize {
        let heads = self.columns[column].0.chars().count();
        self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(heads)
    }

    /// As it is printed: on a terminal, no wider than that, if any way leads there.
    pub fn fitted(&self) -> String {
        say::columns().map_or_else(|| self.to_string(), |width| self.within(width))
    }

    fn within(&self, width: usize) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        if self.total(&all) <= width {
            return self.show(&all, &[], width);
        }
        let tells = |&at: &usize| at == 0 || self.rows.iter().any(|row| tells(&row[at]));
        let told: Vec<usize> = all.into_iter().filter(tells).collect();
        let fits = (2..=told.len()).rev().find(|&count| self.total(&told[..count]) <= width);
        let (beside, below) = told.split_at(fits.unwrap_or(1));
        self.show(beside, below, width)
    }

    /// The width of lines of these columns.
    fn total(&self, columns: &[usize]) -> usize {
        columns.iter().map(|&at| self.width(at) + 2).sum::<usize>().saturating_sub(2)
    }

    /// The rows with columns beside each other, and others below.
    fn show(&self, beside: &[usize], below: &[usize], width: usize) -> String {
        let widths: Vec<usize> = beside.iter().map(|&at| self.width(at)).collect();
        let mut text = self.line(beside, &widths, |at| self.columns[at].0);
        for row in &self.rows {
            let line = self.line(beside, &widths, |at| &row[at]);
            // A row that only goes on with the one above has nothing beside.
            text += if below.is_empty() || line != "\n" { &line } else { "" };
            let below = below.iter().filter(|&&at| tells(&row[at]));
            let below = below.map(|&at| format!("{} {}", self.columns[at].0, row[at]));
            text += &filled(below, width);
        }
        text
    }

    fn line<'a>(
        &self,
        columns: &[usize],
        widths: &[usize],
        value: impl Fn(usize) -> &'a str,
    ) -> String {
        let mut line = String::new();
        for (&at, &width) in columns.iter().zip(widths) {
            let value = value(at);
            line += &match self.columns[at].1 {
                Align::Left => format!("{value:<width$}  "),
                Align::Right => format!("{value:>width$}  "),
            };
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        f.write_str(&self.show(&all, &[], usize::MAX))
    }
}

fn tells(value: &str) -> bool {
    !matches!(value, "" | "-")
}

/// Lines of pieces, indented. One that is longer than a line is broken between words.
fn filled(pieces: impl Iterator<Item = String>, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        let piece = piece.trim_start();
        match lines.last_mut() {
            Some(line) if length(line) + 2 + length(piece) <= width => {
                *line += &format!("  {piece}");
            }
            _ => lines.push(format!("    {piece}")),
        }
    }
    lines.iter().map(|line| wrapped(line, width) + "\n").collect()
}

/// A line as lines of at most so many characters, broken between words. Those behind the first are
/// indented, two more than it is.
pub fn wrapped(line: &str, width: usize) -> String {
    let indent = line.len() - line.trim_start().len();
    let (mut text, mut used) = (String::new(), 0);
    for (number, word) in line[indent..].split(' ').enumerate() {
        if number == 0 {
            text += &" ".repeat(indent);
            used = indent;
        } else if used + 1 + length(word) <= width {
            text.push(' ');
            used += 1;
        } else {
            text += &format!("\n{}", " ".repeat(indent + 2));
            used = indent + 2;
        }
        text += word;
        used += length(word);
    }
    text
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// A text of at most `most` characters; what is cut off is marked.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// A number with a suffix, three digits or four: `999`, `1.23k`, `45.6M`.
pub fn short(number: f64) -> String {
    const SUFFIXES: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut number, mut suffix) = (number, 0);
    while number >= 999.5 && suffix + 1 < SUFFIXES.len() {
        number /= 1000.0;
        suffix += 1;
    }
    let digits = match number {
        _ if suffix == 0 => 0,
        n if n < 9.995 => 2,
        n if n < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{}", SUFFIXES[suffix])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_columns_are_aligned_and_lines_have_no_tail() {
        let mut table = Table::new(&[("PORT", Align::Left), ("N", Align::Right)]);
        table.row(["vale0:a".to_owned(), "7".to_owned()]);
        table.row(["b".to_owned(), "12345".to_owned()]);
        assert_eq!(table.to_string(), "PORT         N\nvale0:a      7\nb        12345\n");
        let mut table = Table::new(&[("A", Align::Left), ("B", Align::Left)]);
        table.row(["x".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "A  B\nx\n");
    }

    #[test]
    fn test_a_narrow_terminal_loses_nothing_but_columns_that_say_nothing() {
        let mut table = Table::new(&[
            ("PORT", Align::Left),
            ("N", Align::Right),
            ("NONE", Align::Left),
            ("WHAT", Align::Left),
            ("MORE", Align::Right),
        ]);
        let row = |values: [&str; 5]| values.map(str::to_owned);
        table.row(row(["vale0:a", "7", "-", "short", "1"]));
        table.row(row(["b", "12345", "", "one of several words", "-"]));
        let wide = "PORT         N  NONE  WHAT                  MORE\n\
                    vale0:a      7  -     short                    1\n\
                    b        12345        one of several words     -\n";
        assert_eq!((table.to_string(), table.within(48)), (wide.to_owned(), wide.to_owned()));
        let without = "PORT         N  WHAT                  MORE\n\
                       vale0:a      7  short                    1\n\
                       b        12345  one of several words     -\n";
        assert_eq!(table.within(47), without);
        let below = "PORT         N\n\
                     vale0:a      7\n    WHAT short  MORE 1\n\
                     b        12345\n    WHAT one of several\n      words\n";
        assert_eq!(table.within(24), below);
    }

    #[test]
    fn test_lines_are_broken_between_words() {
        assert_eq!(wrapped("  one two three", 80), "  one two three");
        assert_eq!(wrapped("  one two three", 9), "  one two\n    three");
        assert_eq!(wrapped("a-long-word b", 4), "a-long-word\n  b");
        assert_eq!(wrapped("", 4), "");
    }

    #[test]
    fn test_items_make_rows() {
        let columns = [
            left("NAME", |item: &(&str, u8)| item.0.to_owned()),
            right("N", |item| item.1.to_string()),
        ];
        let table = Table::of(&[("a", 1), ("b", 200)], &columns);
        assert_eq!(table.to_string(), "NAME    N\na       1\nb     200\n");
        assert_eq!((or_dash(Some(7)), or_dash::<u8>(None)), ("7".to_owned(), "-".to_owned()));
    }

    #[test]
    fn test_cut_marks_what_is_missing() {
        assert_eq!(cut("trunk:1,3,5", 11), "trunk:1,3,5");
        assert_eq!(cut("trunk:1,3,5", 10), "trunk:1,3…");
    }

    #[test]
    fn test_short_numbers() {
        let numbers = [0.0, 999.0, 999.6, 1234.0, 45_600_000.0, 999_900.0, 7e15];
        let texts: Vec<String> = numbers.into_iter().map(short).collect();
        assert_eq!(texts, ["0", "999", "1.00k", "1.23k", "45.6M", "1.00M", "7000T"]);
    }
}
