//! Reading a file that an operator names.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// No configuration file is this long, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// The bytes of a file, `max` at most.
///
/// # Errors
/// The file cannot be read, or is too long.
pub fn read_bytes(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::other(format!("the file has more than {max} bytes")));
    }
    Ok(bytes)
}

/// The text of a file of less than 16 MiB. The limit is there for files without an end, such as
/// `/dev/zero`.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or is too long.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    if length as u64 == MAX_FILE {
        return Err(io::Error::other("16 MiB or more: this is no configuration"));
    }
    Ok(text)
}
