//! Tables for people: columns as wide as they need to be, two spaces between them.

use std::fmt;

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

    fn line(&self, widths: &[usize], values: &[&str]) -> String {
        let mut line = String::new();
        for ((value, width), (_, align)) in values.iter().zip(widths).zip(&self.columns) {
            let width = *width;
            line += &match align {
                Align::Left => format!("{value:<width$}  "),
                Align::Right => format!("{value:>width$}  "),
            };
        }
        line.truncate(line.trim_end().len());
        line
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.columns.len()).map(|i| self.width(i)).collect();
        let heads: Vec<&str> = self.columns.iter().map(|column| column.0).collect();
        writeln!(f, "{}", self.line(&widths, &heads))?;
        for row in &self.rows {
            let values: Vec<&str> = row.iter().map(String::as_str).collect();
            writeln!(f, "{}", self.line(&widths, &values))?;
        }
        Ok(())
    }
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
