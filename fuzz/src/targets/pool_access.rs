//! The pooler's access control: HBA rules, user name maps, PROXY headers, console commands.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

use howdah_pool::{auth::proxy_protocol, console_tag};
use howdah_pool_config::hba::{
    ClientCertificate, ClientOrigin, ConnectionInfo, Files, Hba, Networks,
};

use super::Shape;

/// Fragments of rules and maps.
pub const RULE_WORDS: &[&[u8]] = &[
    b"local ",
    b"host ",
    b"hostssl ",
    b"hostnossl ",
    b"all ",
    b"sameuser ",
    b"replication ",
    b"samehost ",
    b"10.0.0.0/8 ",
    b"::1/128 ",
    b"127.0.0.1 255.0.0.0 ",
    b"trust",
    b"reject",
    b"md5",
    b"cert",
    b"peer",
    b" map=m",
    b" clientcert=verify-ca",
    b"include hba\n",
    b"include_if_exists no\n",
    b"include_dir .\n",
    b"@hba",
    b"/^a(.*)$",
    b"\\1",
    b"\"",
    b"\"\"",
    b"#",
    b",",
    b"\\\n",
    b"\n",
    b"\0",
];

/// Rules, then a zero byte and maps.
pub fn rules_seeds() -> Vec<Vec<u8>> {
    [
        "local all all peer map=m\nhost \"a b\",c @hba 10.0.0.0/8 scram-sha-256\0m root all\n",
        "hostssl /^a all all cert map=m # x\nhost all all samenet reject\0m /^(.*)@x$ \\1\n",
        "include hba\nhostnossl sameuser a 10.0.0.0 \\\n 255.0.0.0 md5 \"x=y z\"\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Holds one rules file, which may include itself, and one map file.
struct One<'a>(&'a str, &'a str);

impl Files for One<'_> {
    fn text(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("hba") => Ok(self.0.to_owned()),
            Some("ident") => Ok(self.1.to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

/// Reads rules and maps. Errors name a file and line; valid rules decide deterministically.
pub fn rules(input: &[u8]) -> Shape {
    let Ok(text) = std::str::from_utf8(input) else { return Shape::of(0) };
    let (rules, maps) = text.split_once('\0').unwrap_or((text, ""));
    let read = || {
        let users = BTreeMap::from([(0, "root".to_owned())]);
        let files = One(rules, maps);
        Hba::read(Path::new("hba"), Some(Path::new("ident")), &files, Networks::default(), users)
    };
    match read() {
        Ok(hba) => {
            let mut outcomes = Vec::new();
            let tcp = ClientOrigin::Tcp(Some(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3))));
            for from in [ClientOrigin::Unix { uid: Some(0) }, ClientOrigin::Unix { uid: None }, tcp]
            {
                for name in [None, Some("a@x")] {
                    let certificate =
                        name.map(|name| ClientCertificate { common_name: Some(name) });
                    let is_tls = certificate.is_some();
                    let (user, database, is_physical) = ("a", "c", false);
                    let knock =
                        ConnectionInfo { user, database, is_physical, from, is_tls, certificate };
                    let judged = hba.required_auth(&knock);
                    assert_eq!(judged, hba.required_auth(&knock));
                    outcomes.push(format!("{judged:?}"));
                }
            }
            assert_eq!(read().as_ref(), Ok(&hba));
            Shape::each(outcomes)
        }
        Err(wrong) => {
            assert!(!wrong.is_empty());
            let lines = rules.lines().count().max(maps.lines().count());
            for error in &wrong {
                assert!(error.line <= lines.max(1), "{error}");
                assert!(["hba", "ident"].iter().any(|file| Path::new(file) == error.file));
            }
            Shape::each(wrong.iter().map(|error| error.text.split(' ').next_back()))
        }
    }
}

/// Valid PROXY headers of both versions.
pub fn header_seeds() -> Vec<Vec<u8>> {
    [
        &b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\nmore"[..],
        b"PROXY TCP6 2001:db8::1 ::1 5 6\r\n",
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\x12\x67\x19\x20more",
        b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    ]
    .map(<[u8]>::to_vec)
    .to_vec()
}

/// Parses a PROXY header: bytes after it change nothing, and a shortened one is incomplete.
pub fn header(input: &[u8]) -> Shape {
    match proxy_protocol::parse(input) {
        Ok(Some(found)) => {
            assert!(found.bytes <= input.len());
            assert_eq!(proxy_protocol::parse(&input[..found.bytes]), Ok(Some(found)));
            for end in 0..found.bytes {
                assert_eq!(proxy_protocol::parse(&input[..end]), Ok(None), "cut at {end}");
            }
            Shape::of(found.source.map(|source| source.is_ipv4()))
        }
        Ok(None) => Shape::of(input.len().min(20)),
        Err(error) => Shape::of(error.to_string()),
    }
}

/// Fragments of console commands.
pub const CONSOLE_WORDS: &[&[u8]] = &[
    b"show ",
    b"SELECT ",
    b"pools",
    b"stats_totals",
    b"config",
    b"pause ",
    b"resume",
    b"kill_client 7",
    b"reconnect",
    b"wait_close",
    b"shutdown wait_for_clients",
    b"set application_name = 'x'",
    b"SET query_timeout = 5",
    b"reload",
    b"\"a b\"",
    b"\"\"",
    b"'",
    b";",
    b"=",
];

/// Commands of the console.
pub fn console_seeds() -> Vec<Vec<u8>> {
    CONSOLE_WORDS.iter().map(|word| word.to_vec()).collect()
}

/// Parses a command: blanks and semicolons around it change nothing.
pub fn console(input: &[u8]) -> Shape {
    let Ok(text) = std::str::from_utf8(input) else { return Shape::of(0) };
    let tag = console_tag(text);
    assert_eq!(console_tag(&format!("  {text} ")), tag, "{text:?}");
    if !text.contains(['"', '\'']) {
        assert_eq!(console_tag(&format!("{text};")), tag, "{text:?}");
    }
    Shape::of(tag)
}
