//! Expected values are those of libpq: each row was checked with `PQconninfoParse`, except for
//! errors that are marked as our own.

use super::*;
use crate::conninfo;

fn read(text: &str) -> String {
    match conninfo::parse(text) {
        Err(error) => format!("error: {error}"),
        Ok(settings) => {
            let show = |name| format!("{name}={}", settings.value(name).unwrap_or_default());
            settings.names().map(show).collect::<Vec<_>>().join(" ")
        }
    }
}

#[test]
fn uris_parse_like_libpq() {
    let table = [
        ("postgresql://", ""),
        ("postgres://", ""),
        ("postgres:///", ""),
        ("postgresql://host", "host=host"),
        ("postgresql://host/", "host=host"),
        ("postgresql://host:12345/", "host=host port=12345"),
        ("postgresql://host:/db", "dbname=db host=host"),
        ("postgresql://:12345/db", "dbname=db port=12345"),
        ("postgresql:///db", "dbname=db"),
        ("postgresql://host/db", "dbname=db host=host"),
        ("postgresql://user@host:1/db", "dbname=db host=host port=1 user=user"),
        ("postgresql://user:pw@host/db", "dbname=db host=host password=pw user=user"),
        ("postgresql://user:@host", "host=host user=user"),
        ("postgresql://:pw@host", "host=host password=pw"),
        ("postgresql://@host", "host=host"),
        ("postgresql://@", ""),
        ("postgresql://us%20er:p%40%3A%2Fw@h/d%2Fb", "dbname=d/b host=h password=p@:/w user=us er"),
        ("postgresql://u:p:w@h", "host=h password=p:w user=u"),
        ("postgresql://u:p?w@h/d", "dbname=d host=h password=p?w user=u"),
        ("postgresql://host?user=u", "host=host user=u"),
        ("postgresql://host/db?user=u&port=1", "dbname=db host=host port=1 user=u"),
        ("postgresql://host/db?user=u&", "dbname=db host=host user=u"),
        ("postgresql://host/db?user=", "dbname=db host=host user="),
        ("postgresql://host?", "host=host"),
        ("postgresql:///?dbname=d", "dbname=d"),
        ("postgresql://h/a?dbname=b", "dbname=b host=h"),
        ("postgresql://h?ssl=true", "host=h sslmode=require"),
        ("postgresql://h?%75ser=%41", "host=h user=A"),
        ("postgresql://h/d?options=-c%20a%3Db", "dbname=d host=h options=-c a=b"),
        ("postgresql://[::1]", "host=::1"),
        ("postgresql://[::1]:5433/db", "dbname=db host=::1 port=5433"),
        ("postgresql://u@[2001:db8::1%25eth0]?port=1", "host=2001:db8::1%eth0 port=1 user=u"),
        ("postgresql://h1:1,h2:2/db", "dbname=db host=h1,h2 port=1,2"),
        ("postgresql://h1,h2:2", "host=h1,h2 port=,2"),
        ("postgresql://h1,h2", "host=h1,h2 port=,"),
        ("postgresql://[::1]:1,h2,/d", "dbname=d host=::1,h2, port=1,,"),
        ("postgresql://%2Fvar%2Frun:5433/db", "dbname=db host=/var/run port=5433"),
        ("postgresql:///db?host=/var/run", "dbname=db host=/var/run"),
        ("postgresql://ü@h/%C3%BC", "dbname=ü host=h user=ü"),
        ("postgresql://h/a@b", "dbname=a@b host=h"),
        ("postgresql://h:5432/a@b", "dbname=a@b host=h port=5432"),
        // libpq of PostgreSQL 18 and later.
        (" host=h dbname=d", "dbname=d host=h"),
        ("postgresql://h/d ", "dbname=d host=h"),
    ];
    for (text, expected) in table {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn errors_name_the_uri_part() {
    let table = [
        (
            "postgresql://[::1",
            "the URI has an invalid IPv6 host: write the address between \"[\" and \"]\", as in postgresql://[::1]:5432/",
        ),
        (
            "postgresql://[]",
            "the URI has an invalid IPv6 host: write the address between \"[\" and \"]\", as in postgresql://[::1]:5432/",
        ),
        (
            "postgresql://[::1]z",
            "the URI has an invalid IPv6 host: write the address between \"[\" and \"]\", as in postgresql://[::1]:5432/",
        ),
        (
            "postgresql://h?x",
            "the URI has a parameter without \"=\", or with \"=\" in its value: write keyword=value, and %3D for \"=\" in a value",
        ),
        (
            "postgresql://h?&",
            "the URI has a parameter without \"=\", or with \"=\" in its value: write keyword=value, and %3D for \"=\" in a value",
        ),
        (
            "postgresql://h?user=a=b",
            "the URI has a parameter without \"=\", or with \"=\" in its value: write keyword=value, and %3D for \"=\" in a value",
        ),
        ("postgresql://h?zzzz=1", "unknown connection keyword \"zzzz\""),
        ("postgresql://h?sslmod=1", "unknown connection keyword \"sslmod\", did you mean sslmode?"),
        ("postgresql://h?ssl=1", "unknown connection keyword \"ssl\", did you mean sslmode?"),
        (
            "postgresql://h/%zz",
            "the database name of the URI has an invalid escape: \"%\" needs two hexadecimal \
             digits, not 00",
        ),
        (
            "postgresql://%00",
            "the host of the URI has an invalid escape: \"%\" needs two hexadecimal digits, not 00",
        ),
        (
            "postgresql://h/a%4",
            "the database name of the URI has an invalid escape: \"%\" needs two hexadecimal \
             digits, not 00",
        ),
        ("postgresql://h/%ff", "the database name of the URI is not UTF-8 after decoding"),
        (
            "postgresql://h/a b",
            "the database name of the URI has white space: write a space as %20",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(read(text), format!("error: {expected}"), "{text}");
    }
}

/// These errors are our own: libpq accepts some of these URIs, and then resolves a part of the
/// password as a host name.
#[test]
fn errors_never_contain_password_parts() {
    let table = [
        "postgresql://user:pa@hunter2@host/db",
        "postgresql://user:hunter2@pa@host/db",
        "postgresql://user:hunter2/pa@host/db",
        "postgresql://user:%68unter2/pa@host/db",
        "postgresql://user:hunter2%zz@host/db",
        "postgresql://user:hunter2 hunter2@host/db",
        "postgresql://user:hun%zzter2@host/db",
        "postgresql://host/db?password=pa&hunter2",
        "postgresql://host/db?password=pa&hunter2=x",
        "postgresql://host/db?password=pa=hunter2",
        "jdbc:postgresql://user:hunter2@host/db",
        "postgresql+psycopg://user:hunter2@host/db",
        "postgres:user:hunter2@host/db",
    ];
    for text in table {
        let error = conninfo::parse(text).err().unwrap_or_else(|| panic!("{text} was accepted"));
        assert!(!error.to_string().contains("hunter2"), "{text}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{text}: {error:?}");
    }
}

#[test]
fn percent_encoding_round_trips() {
    for text in ["plain", "a b/c:d@e?f&g=h%i,j", "/var/run/postgresql", "ü\u{1f418}", "[::1]"] {
        assert_eq!(decode("text", &encode(text, b"")).unwrap(), text);
        assert_eq!(decode("text", &encode(text, b"/,:")).unwrap(), text);
    }
}
