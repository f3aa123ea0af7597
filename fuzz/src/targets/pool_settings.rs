//! The pooler's settings: `howdah.toml`, `pgbouncer.ini`, `userlist.txt`.

use std::path::Path;

use howdah_pool_config::{Config, FileFormat, StoredSecret, read_userlist};

use super::Shape;

/// Sections, keys and values of all three.
pub const WORDS: &[&[u8]] = &[
    b"[databases]\n",
    b"[pgbouncer]\n",
    b"[users]\n",
    b"[peers]\n",
    b"host=",
    b" port=5432",
    b" password='",
    b"pool_mode = transaction\n",
    b"auth_type = md5\n",
    b"[pool.databases.a]\n",
    b"[pool.users]\n",
    b"a = { secret = ",
    b"'",
    b"\"",
    b"\"\"",
    b";",
];

/// A password in the seeds that no diagnostic may show.
const SECRET: &str = "hunter2";

/// Reads settings: the result is deterministic, and each diagnostic names an existing line.
pub fn settings(input: &[u8]) -> Shape {
    let Ok(text) = std::str::from_utf8(input) else { return Shape::of(0) };
    // The parser would open any file that the input names.
    if ["%include", "file"].iter().any(|word| text.contains(word)) {
        return Shape::of(1);
    }
    let lines = text.lines().count().max(1);
    let read = Config::read_str(text, Path::new("p"));
    let remarks = match &read {
        Ok(read) => &read.warnings,
        Err(wrong) => &wrong.0,
    };
    assert!(read.is_ok() || !remarks.is_empty());
    for remark in remarks {
        assert!(remark.line <= lines + 1, "{remark}");
    }
    if let Ok(read) = &read {
        assert!(!format!("{:?}", read.config.users).contains(SECRET));
        let again = Config::read_str(text, Path::new("p")).map(|read| read.config);
        assert_eq!(again.as_ref(), Ok(&read.config));
        for name in read.config.databases.keys() {
            assert!(read.config.pool(name, "somebody").is_some_and(|it| !it.servers.is_empty()));
        }
    }
    let kinds = remarks.iter().map(|remark| remark.text.split(' ').next_back());
    Shape::each(kinds).and((FileFormat::detect(text) == FileFormat::Howdah, read.is_ok()))
}

/// Reads a user list, and checks that its entries survive being written and read again.
pub fn userlist(input: &[u8]) -> Shape {
    let Ok(text) = std::str::from_utf8(input) else { return Shape::of(0) };
    match read_userlist(text) {
        Ok(users) => {
            for (name, secret) in &users {
                let StoredSecret::Plain(secret) = secret else { continue };
                let secret = String::from_utf8_lossy(secret.expose());
                let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
                let line = format!("{} {}", quoted(name), quoted(&secret));
                let again = read_userlist(&line).expect("it was written to be read");
                assert_eq!(again.get(name), users.get(name));
            }
            Shape::of(users.len().min(4))
        }
        Err(error) => {
            assert!((1..=text.lines().count()).contains(&error.line));
            assert!(!error.to_string().contains(SECRET));
            Shape::of(error.kind.to_string())
        }
    }
}
