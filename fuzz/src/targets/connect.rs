//! Connection strings, password files, service files.

use std::{fs, mem::discriminant, os::unix::fs::PermissionsExt, path::Path};

use howdah_connect::{ConnParams, ConnectTarget, Environment, ResolveError};
use tempfile::TempDir;

use super::Shape;

/// Fragments of connection strings.
pub const WORDS: &[&[u8]] = &[
    b"postgresql://",
    b"postgres://",
    b"jdbc:postgresql://",
    b"@",
    b":",
    b"/",
    b"?",
    b"&",
    b"=",
    b",",
    b"%2F",
    b"%00",
    b"%zz",
    b"[::1]",
    b"host=",
    b"hostaddr=127.0.0.1",
    b"port=5432",
    b"user=al",
    b"password=",
    b"password='s3cr3t-w0rd'",
    b" password=s3cr3t-w0rd",
    b":s3cr3t-w0rd@",
    b"dbname=",
    b"sslmode=verify-full",
    b"sslmode=",
    b"ssl=true",
    b"sslrootcert=system",
    b"connect_timeout=10",
    b"target_session_attrs=primary",
    b"load_balance_hosts=random",
    b"options='-c a=b'",
    b"application_name=",
    b"service=",
    b"'",
    b"\\",
    b"\\'",
    b" ",
    b"/tmp",
    b"channel_binding=require",
    b"ssl_min_protocol_version=TLSv1.3",
    b"keepalives_idle=",
];

/// Fragments of password and service files.
pub const FILE_WORDS: &[&[u8]] = &[
    b":",
    b"\\:",
    b"\\\\",
    b"*:",
    b"*:*:*:*:",
    b"\n",
    b"\r\n",
    b"#",
    b"[",
    b"]",
    b"[shop]\n",
    b"=",
    b"host=db1\n",
    b"password=",
    b"ldap://",
    b"service=shop\n",
    b"db1:5432:shop:al:",
];

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir().expect("a folder");
}

fn environment() -> Environment {
    Environment::empty().with_os_user("anna")
}

/// Parses a connection string as if typed by the user.
pub fn conninfo(input: &[u8]) -> Shape {
    let Ok(text) = std::str::from_utf8(input) else { return Shape::of("not text") };
    if text.contains('\0') {
        // Arguments and environment variables cannot contain zero bytes, nor can a URI express one.
        return Shape::of("zero byte");
    }
    let environment = environment();
    let words = ConnParams::from_conninfo(text);
    assert!(!text.contains('=') || !format!("{words:?}").contains(text));
    let target = match ConnectTarget::resolve(&words, &environment) {
        Ok(target) => target,
        Err(error) => {
            let error_text = error.to_string();
            let is_secret = text.starts_with(&format!("password={SECRET}"))
                && text.matches(SECRET).count() == 1;
            assert!(!is_secret || !error_text.contains(SECRET), "{error_text}");
            return Shape::of(discriminant(&error));
        }
    };
    assert!(!target.endpoints().is_empty());
    let uri = target.to_string();
    let again = ConnectTarget::resolve(&ConnParams::from_conninfo(uri.as_str()), &environment);
    let again = match again {
        Ok(again) => again,
        Err(error) => unreadable(&uri, &error),
    };
    assert_eq!(again.to_string(), uri);
    assert_eq!(again.endpoints(), target.endpoints(), "{uri}");
    assert_eq!(
        (again.user(), again.database(), again.application_name(), again.options()),
        (target.user(), target.database(), target.application_name(), target.options()),
        "{uri}"
    );
    hides_password(&target, &uri);
    let parameters: Vec<_> = uri.split(['?', '&']).skip(1).map(|it| it.split('=').next()).collect();
    Shape::of((target.endpoints().len().min(3), parameters, target.warnings().len().min(3)))
}

#[expect(clippy::panic, reason = "a target's finding is a panic")]
fn unreadable(uri: &str, error: &ResolveError) -> ! {
    panic!("{uri} is not read back: {error}")
}

/// A password that is recognised wherever mutation puts it.
const SECRET: &str = "s3cr3t-w0rd";

/// Checks that neither form of a target shows the password, unless the text has it elsewhere too.
fn hides_password(target: &ConnectTarget, uri: &str) {
    let public = format!(
        "{} {} {} {:?} {:?} {:?}",
        target.user(),
        target.database(),
        target.application_name(),
        target.options(),
        target.endpoints(),
        target.tls()
    );
    let shown = format!("{uri} {target:?}");
    assert!(public.contains(SECRET) || !shown.contains(SECRET), "{shown}");
}

/// Looks up a password in a file that starts with an entry added by this target.
pub fn passfile(input: &[u8]) -> Shape {
    FOLDER.with(|folder| passwords(&folder.path().join(".pgpass"), input))
}

fn passwords(path: &Path, input: &[u8]) -> Shape {
    let (user, database) = ("al:\\", "shop");
    let password = input.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
    let mut file = b"db1:5432:shop:al\\:\\\\:".to_vec();
    for byte in &password {
        if matches!(byte, b':' | b'\\') {
            file.push(b'\\');
        }
        file.push(*byte);
    }
    file.push(b'\n');
    let with_ours = [&file, input].concat();
    let shape = found(path, &[input, b"\n*:*:*:*:last\n"].concat(), user, database);
    let ours = found(path, &with_ours, user, database);
    // A trailing carriage return is removed as part of a CRLF line end; an empty password counts as
    // none.
    if !password.is_empty() && password.last() != Some(&b'\r') {
        assert_eq!(ours.as_deref(), Some(&*password));
    }
    Shape::of((shape.map(|password| password.len().min(9)), input.len().min(9)))
}

fn found(path: &Path, file: &[u8], user: &str, database: &str) -> Option<Vec<u8>> {
    fs::write(path, file).expect("room for a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("our file");
    let words = ConnParams {
        host: Some("db1".to_owned()),
        port: Some("5432".to_owned()),
        user: Some(user.to_owned()),
        database: Some(database.to_owned()),
        ..ConnParams::default()
    };
    let home = path.parent().unwrap_or(path);
    let target =
        ConnectTarget::resolve(&words, &environment().with_home(home)).expect("plain words");
    assert!(target.warnings().is_empty(), "{:?}", target.warnings());
    let password = target.login(&target.endpoints()[0]).password?;
    Some(password.expose().to_vec())
}

/// Reads the section `shop` of a service file.
pub fn service(input: &[u8]) -> Shape {
    let resolved = FOLDER.with(|folder| {
        let path = folder.path().join("pg_service.conf");
        fs::write(&path, input).expect("room for a file");
        let environment = environment()
            .with_variable("PGSERVICEFILE", path.as_os_str())
            .with_variable("PGSYSCONFDIR", folder.path().as_os_str());
        ConnectTarget::resolve(&ConnParams::from_conninfo("service=shop"), &environment)
    });
    let lines = input.split(|byte| *byte == b'\n').count();
    match resolved {
        Ok(target) => Shape::of(("found", target.endpoints().len().min(3))),
        Err(ResolveError::ServiceLine { line, problem, .. }) => {
            assert!((1..=lines).contains(&line), "line {line} of {lines}");
            Shape::of(("line", discriminant(&problem)))
        }
        Err(error) => Shape::of(discriminant(&error)),
    }
}
