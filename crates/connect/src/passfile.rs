//! The password file: `~/.pgpass`, or the file named by `passfile` or `PGPASSFILE`.
//!
//! ```text
//! hostname:port:database:username:password
//! ```
//!
//! The first four fields may be `*`; a backslash escapes a `:` or `\`; `#` starts a comment line.
//! The first matching line is used. Source: PostgreSQL manual, "The Password File"; where it is
//! silent, `passwordFromFile` in `fe-connect.c`.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
};

use howdah_wire::Secret;

use crate::{Endpoint, file_permissions::is_private, warning::Warning};

/// The entries of a password file. The file is read only once, because replay looks up the password
/// of each of thousands of sessions. Clones share the entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passwords {
    lines: Arc<[PassfileEntry]>,
}

#[derive(Debug)]
struct PassfileEntry {
    host: Pattern,
    port: Pattern,
    database: Pattern,
    user: Pattern,
    password: Secret,
}

#[derive(Debug)]
enum Pattern {
    Any,
    Exactly(Vec<u8>),
}

/// Maximum size of a password file in bytes. It is larger than any real password file; a wrong path
/// must not exhaust memory.
const FILE_BYTES_MAX: u64 = 16 << 20;

impl Passwords {
    /// Reads a password file. A missing file counts as empty; a file that others may access, that
    /// is not a regular file, or that cannot be read is ignored with a warning.
    pub(crate) fn read(path: &Path) -> (Self, Option<Warning>) {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => None,
            _ => Some(Warning::PasswordFileUnreadable {
                path: path.to_owned(),
                reason: source.to_string(),
            }),
        };
        match Self::try_read(path) {
            Ok(Ok(passwords)) => (passwords, None),
            Ok(Err(warning)) => (Self::default(), Some(warning)),
            Err(source) => (Self::default(), unreadable(source)),
        }
    }

    fn try_read(path: &Path) -> io::Result<Result<Self, Warning>> {
        // Checked before opening: opening a FIFO would block.
        if !path.metadata()?.is_file() {
            return Ok(Err(Warning::PasswordFileNotPlain { path: path.to_owned() }));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !is_private(&metadata) {
            let mode = metadata.mode() & 0o777;
            return Ok(Err(Warning::PasswordFilePermissions { path: path.to_owned(), mode }));
        }
        let mut bytes = Vec::new();
        if file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)? as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(Ok(Self::parse(&bytes)))
    }

    fn parse(bytes: &[u8]) -> Self {
        let lines = bytes.split(|byte| *byte == b'\n');
        Self { lines: lines.filter_map(PassfileEntry::parse).collect() }
    }

    /// Returns the password of the first matching line, unless it is empty.
    pub(crate) fn find(&self, endpoint: &Endpoint, database: &str, user: &str) -> Option<&Secret> {
        let host = endpoint.passfile_host();
        let port = endpoint.port().to_string();
        let fits = |line: &&PassfileEntry| {
            line.host.fits(&host)
                && line.port.fits(&port)
                && line.database.fits(database)
                && line.user.fits(user)
        };
        // libpq treats an empty password as none.
        let found = self.lines.iter().find(fits).map(|line| &line.password);
        found.filter(|password| !password.expose().is_empty())
    }
}

impl PassfileEntry {
    /// Parses one line; comments and lines with too few fields match nothing.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        let (host, rest) = Pattern::split(line)?;
        let (port, rest) = Pattern::split(rest)?;
        let (database, rest) = Pattern::split(rest)?;
        let (user, rest) = Pattern::split(rest)?;
        let (password, _) = split_field(rest);
        Some(Self { host, port, database, user, password: Secret::from(password) })
    }
}

impl Pattern {
    /// Parses a pattern and the colon that must follow it.
    fn split(line: &[u8]) -> Option<(Self, &[u8])> {
        if let Some(rest) = line.strip_prefix(b"*:") {
            return Some((Self::Any, rest));
        }
        let (field, rest) = split_field(line);
        Some((Self::Exactly(field), rest?))
    }

    fn fits(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(exactly) => exactly == text.as_bytes(),
        }
    }
}

/// Reads up to an unescaped colon. Returns the field and the text after the colon, or the whole
/// text and `None` without a colon.
fn split_field(text: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
    let mut field = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match (byte, text.get(at + 1)) {
            (b':', _) => return (field, Some(&text[at + 1..])),
            (b'\\', Some(&escaped)) => {
                field.push(escaped);
                at += 1;
            }
            _ => field.push(byte),
        }
        at += 1;
    }
    (field, None)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::*;

    fn find(file: &str, host: &str, port: u16, database: &str, user: &str) -> Option<String> {
        let endpoint = if host.starts_with('/') {
            Endpoint::Unix { path: PathBuf::from(format!("{host}/.s.PGSQL.{port}")) }
        } else {
            Endpoint::Tcp { host: host.to_owned(), hostaddr: None, port }
        };
        let passwords = Passwords::parse(file.as_bytes());
        let found = passwords.find(&endpoint, database, user)?;
        Some(String::from_utf8(found.expose().to_vec()).unwrap())
    }

    #[test]
    fn first_matching_line_wins() {
        let file = "# comment:5432:*:*:no\n\
                    too:few:fields\n\
                    db1:5432:shop:anna:one\r\n\
                    db1:*:*:anna:two\n\
                    *:*:*:*:any\n";
        assert_eq!(find(file, "db1", 5432, "shop", "anna").as_deref(), Some("one"));
        assert_eq!(find(file, "db1", 5433, "shop", "anna").as_deref(), Some("two"));
        assert_eq!(find(file, "db2", 5432, "shop", "anna").as_deref(), Some("any"));
        assert_eq!(find("db1:5432:shop:anna:one", "db1", 5432, "shop", "bob"), None);
        assert_eq!(find("", "db1", 5432, "shop", "anna"), None);
    }

    #[test]
    fn backslash_escapes_next_byte() {
        let file = r"\:\:1:5432:sh\\op:an\na:pa\:ss\\word\";
        assert_eq!(find(file, "::1", 5432, r"sh\op", "anna").as_deref(), Some(r"pa:ss\word\"));
        // An escaped star is a literal star.
        assert_eq!(find(r"\*:*:*:*:x", "db1", 5432, "shop", "anna"), None);
        assert_eq!(find("a*:*:*:*:x", "ab", 5432, "shop", "anna"), None);
        // The password ends at an unescaped colon.
        assert_eq!(find("*:*:*:*:x:y", "db1", 5432, "shop", "anna").as_deref(), Some("x"));
    }

    #[test]
    fn localhost_matches_default_socket_directory() {
        let file = "localhost:5432:*:*:local\n/srv/pg:5432:*:*:other\n";
        assert_eq!(find(file, "localhost", 5432, "d", "u").as_deref(), Some("local"));
        assert_eq!(find(file, "/var/run/postgresql", 5432, "d", "u").as_deref(), Some("local"));
        assert_eq!(find(file, "/tmp", 5432, "d", "u").as_deref(), Some("local"));
        assert_eq!(find(file, "/srv/pg", 5432, "d", "u").as_deref(), Some("other"));
        assert_eq!(find(file, "/srv/pg", 5433, "d", "u"), None);
    }

    /// Escapes a field: the inverse of the parser's unescaping.
    fn escape(field: &str) -> String {
        field.replace('\\', r"\\").replace(':', r"\:").replace('*', r"\*")
    }

    proptest::proptest! {
        #[test]
        fn escaped_fields_round_trip(
            database in r"[a-c:\\*# ]{1,6}",
            user in r"[a-c:\\*# ]{1,6}",
            password in r"[a-c:\\*# ]{1,6}",
        ) {
            let (d, u, p) = (escape(&database), escape(&user), escape(&password));
            let file = format!("db1:5432:{d}x:{u}:no\ndb1:5432:{d}:{u}:{p}\n*:*:*:*:any\n");
            let found = find(&file, "db1", 5432, &database, &user);
            proptest::prop_assert_eq!(found, Some(password));
        }

        #[test]
        fn arbitrary_bytes_are_parsed(bytes: Vec<u8>) {
            let lines = bytes.split(|byte| *byte == b'\n').count();
            proptest::prop_assert!(Passwords::parse(&bytes).lines.len() <= lines);
        }
    }

    #[test]
    fn empty_password_counts_as_none() {
        assert_eq!(find("*:*:*:*:", "db1", 5432, "shop", "anna"), None);
    }

    #[test]
    fn file_readable_by_others_is_ignored_with_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        fs::write(&path, "*:*:*:*:hunter2\n").unwrap();
        let read_with = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Passwords::read(&path)
        };
        let is_root = path.metadata().unwrap().uid() == 0;
        for mode in [0o640, 0o604, 0o620, 0o660] {
            let (passwords, warning) = read_with(mode);
            if is_root && mode == 0o640 {
                assert_eq!((passwords.lines.len(), warning), (1, None));
                continue;
            }
            assert!(passwords.lines.is_empty(), "{mode:o}");
            let expected = Warning::PasswordFilePermissions { path: path.clone(), mode };
            assert_eq!(warning, Some(expected));
        }
        let (passwords, warning) = read_with(0o600);
        assert_eq!((passwords.lines.len(), warning), (1, None));
        assert!(!format!("{passwords:?}").contains("hunter2"));
    }

    #[test]
    fn missing_file_is_empty_and_directory_warns() {
        let folder = tempfile::tempdir().unwrap();
        let (_, warning) = Passwords::read(&folder.path().join("none"));
        assert_eq!(warning, None);
        let (_, warning) = Passwords::read(folder.path());
        assert_eq!(warning, Some(Warning::PasswordFileNotPlain { path: folder.path().to_owned() }));
    }
}
