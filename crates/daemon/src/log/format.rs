//! How a line of the log is written: as text, as JSON, or for the journal.
//!
//! The journal takes a line as a datagram of fields (systemd's *Native Journal Protocol*): so
//! `journalctl -p warning` and `journalctl THREAD=worker0` find what they are asked for.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write as _};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For the journal if stderr is one, else text.
    #[default]
    Auto,
    /// Lines for people.
    Text,
    /// A JSON object on each line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("expected auto, text or json, found {text:?}")),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// A line as JSON.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: String,
    level: &'static str,
    thread: &'a str,
    message: String,
    #[serde(flatten)]
    fields: BTreeMap<&'static str, Value>,
}

/// Writes JSON.
#[derive(Debug)]
pub(super) struct Json;

/// Writes datagrams for the journal.
#[derive(Debug)]
pub(super) struct Journal;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Said { message, fields } = Said::of(event);
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let (level, _) = level(*event.metadata().level());
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or_default();
        let line = Line { timestamp, level, thread, message, fields };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (Said { message, fields }, meta) = (Said::of(event), event.metadata());
        // A new line would begin another field.
        let mut field = |name: &str, value: &str| {
            writeln!(writer, "{name}={}", value.replace(['\n', '\r'], " "))
        };
        field("PRIORITY", level(*meta.level()).1)?;
        field("SYSLOG_IDENTIFIER", "uvala")?;
        field("THREAD", std::thread::current().name().unwrap_or_default())?;
        field("CODE_FILE", meta.file().unwrap_or_default())?;
        field("CODE_LINE", &meta.line().unwrap_or_default().to_string())?;
        for (name, value) in fields {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            field(&format!("UVALA_{}", name.to_uppercase().replace('.', "_")), &text)?;
        }
        field("MESSAGE", &message)
    }
}

/// A level's name, and its number in syslog.
fn level(level: Level) -> (&'static str, &'static str) {
    match level {
        Level::ERROR => ("error", "3"),
        Level::WARN => ("warn", "4"),
        Level::INFO => ("info", "6"),
        Level::DEBUG => ("debug", "7"),
        Level::TRACE => ("trace", "7"),
    }
}

/// What an event says.
#[derive(Debug, Default)]
struct Said {
    message: String,
    fields: BTreeMap<&'static str, Value>,
}

impl Said {
    fn of(event: &Event<'_>) -> Self {
        let mut said = Self::default();
        event.record(&mut said);
        said
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.fields.insert(field.name(), format!("{value:?}").into());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.insert(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.insert(field.name(), value.into());
    }
}

/// A connection to the journal. A line that it does not take at once is lost: frames do not wait
/// for the log.
#[derive(Debug)]
pub(super) struct JournalSocket(UnixDatagram);

impl JournalSocket {
    /// Connects to the journal, if one listens there.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }
}

impl<'a> MakeWriter<'a> for JournalSocket {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

impl Write for &JournalSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.send(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a descriptor is the stream of which systemd has said that it leads to the journal
/// (`$JOURNAL_STREAM`: device and inode).
pub(super) fn is_journal(fd: BorrowedFd<'_>, stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else {
        return false;
    };
    rustix::fs::fstat(fd).is_ok_and(|file| {
        (file.st_dev.to_string(), file.st_ino.to_string()) == (device.to_owned(), inode.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;

    use super::*;

    /// What is logged into it.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn test_a_line_of_json_has_its_fields_and_no_second_line() {
        let sink = Sink::default();
        let writer = sink.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .event_format(Json)
            .finish();
        with_default(log, || tracing::warn!(port = %"vale0:a", frames = 7, "a \"b\"\nc"));
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!((&line["level"], &line["message"]), (&"warn".into(), &"a \"b\"\nc".into()));
        assert_eq!((&line["port"], &line["frames"]), (&"vale0:a".into(), &7.into()));
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{text}");
        assert!(line["thread"].as_str().unwrap().contains("json"), "{text}");
    }

    #[test]
    fn test_the_journal_gets_a_datagram_of_fields_that_no_message_can_add_to() {
        let dir = std::env::temp_dir().join(format!("uvala-journal-{}", std::process::id()));
        let _ = std::fs::remove_file(&dir);
        let journal = UnixDatagram::bind(&dir).unwrap();
        let log = tracing_subscriber::fmt()
            .with_writer(JournalSocket::connect(&dir).unwrap())
            .event_format(Journal)
            .finish();
        with_default(log, || tracing::error!(uid = 7, "a\nPRIORITY=0"));
        let _ = std::fs::remove_file(&dir);
        let mut bytes = [0; 4096];
        let len = journal.recv(&mut bytes).unwrap();
        let text = std::str::from_utf8(&bytes[..len]).unwrap();
        let fields: Vec<&str> = text.lines().collect();
        assert!(fields.contains(&"PRIORITY=3") && fields.contains(&"UVALA_UID=7"), "{text}");
        assert!(fields.contains(&"MESSAGE=a PRIORITY=0"), "{text}");
        assert!(fields.contains(&"SYSLOG_IDENTIFIER=uvala"), "{text}");
        assert!(fields.iter().any(|field| field.starts_with("CODE_LINE=")), "{text}");
    }

    #[test]
    fn test_a_journal_that_reads_nothing_does_not_stop_the_daemon() {
        let path = std::env::temp_dir().join(format!("uvala-journal-full-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let journal = UnixDatagram::bind(&path).unwrap();
        let socket = JournalSocket::connect(&path).unwrap();
        for _ in 0..10_000 {
            assert_eq!((&socket).write(&[b'a'; 200]).unwrap(), 200);
        }
        let _ = std::fs::remove_file(&path);
        drop(journal);
    }

    #[test]
    fn test_the_journal_is_known_by_device_and_inode() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let stream = format!("{}:{}", stat.st_dev, stat.st_ino);
        assert!(is_journal(file.as_fd(), Some(&stream)));
        assert!(!is_journal(file.as_fd(), Some("1:2")) && !is_journal(file.as_fd(), None));
    }
}
