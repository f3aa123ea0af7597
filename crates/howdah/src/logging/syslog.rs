//! Logging to the local syslog: one datagram per line, `<priority>name[pid]: text`, as `syslog(3)`
//! of the C library sends it (RFC 3164, section 4.1). The daemon adds time and host.

use std::{io, os::unix::net::UnixDatagram, path::Path};

use tracing::Level;

/// The socket on which the syslog daemon receives messages.
pub(super) const PATH: &str = "/dev/log";
/// Maximum length of a text, in bytes. Daemons truncate texts at 1 KiB to 8 KiB.
const TEXT_BYTES_MAX: usize = 8 << 10;
/// Facility `daemon` of RFC 3164.
const DAEMON: u8 = 3;

/// The name and facility of a process in syslog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyslogName<'n> {
    pub(crate) application: &'n str,
    /// Number of the facility, by RFC 3164, table 1.
    pub(crate) facility: u8,
}

impl<'n> From<&'n str> for SyslogName<'n> {
    fn from(application: &'n str) -> Self {
        Self { application, facility: DAEMON }
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub(super) struct Syslog {
    socket: UnixDatagram,
    /// Tag of each line, `name[pid]`.
    tag: String,
    facility: u8,
}

impl Syslog {
    pub(super) fn open(path: &Path, name: SyslogName<'_>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // If the daemon does not read, the process must not block.
        socket.set_nonblocking(true)?;
        let fits = |c: &char| !c.is_control() && !c.is_whitespace() && !matches!(c, ':' | '[');
        let application: String = name.application.chars().filter(fits).collect();
        Ok(Self {
            socket,
            tag: format!("{application}[{}]", std::process::id()),
            facility: name.facility,
        })
    }

    /// Returns a writer for one line.
    pub(super) fn line(&self, level: Level) -> SyslogLine<'_> {
        SyslogLine { syslog: self, priority: self.facility * 8 + severity(level) }
    }
}

/// Returns the severity of a level, by RFC 3164, table 2.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// A log line in progress; each write sends a datagram.
#[derive(Debug)]
pub(super) struct SyslogLine<'s> {
    syslog: &'s Syslog,
    priority: u8,
}

impl io::Write for SyslogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes));
        let text = without_colours(text.trim_end());
        let datagram = format!("<{}>{}: {text}", self.priority, self.syslog.tag);
        // A failure cannot be reported anywhere else.
        let _ = self.syslog.socket.send(datagram.as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes terminal colour sequences, `ESC [ … m`.
pub(super) fn without_colours(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += part.split_once('m').map_or(part, |(_, rest)| rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn line_is_sent_as_datagram_with_priority() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let syslog = Syslog::open(&path, "my statsd".into()).unwrap();
        for (level, priority) in [(Level::ERROR, 27), (Level::WARN, 28), (Level::INFO, 30)] {
            let text = "\x1b[33mWARN\x1b[0m packets were lost\n";
            syslog.line(level).write_all(text.as_bytes()).unwrap();
            let mut datagram = [0; 200];
            let bytes = daemon.recv(&mut datagram).unwrap();
            let expected =
                format!("<{priority}>mystatsd[{}]: WARN packets were lost", std::process::id());
            assert_eq!(std::str::from_utf8(&datagram[..bytes]).unwrap(), expected);
        }
        // Without a daemon, lines are discarded without an error.
        drop(daemon);
        syslog.line(Level::INFO).write_all(b"x").unwrap();
    }

    #[test]
    fn open_fails_without_daemon() {
        assert!(Syslog::open("/nonexistent/log".as_ref(), "statsd".into()).is_err());
    }
}
