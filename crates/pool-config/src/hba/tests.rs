//! Tests of HBA rules: a table of connections and their outcomes, and a table of errors in files.

use super::*;

/// Files in memory, as pairs of name and text.
struct MemoryFiles<'a>(&'a [(&'a str, &'a str)]);

impl Files for MemoryFiles<'_> {
    fn text(&self, path: &Path) -> io::Result<String> {
        let found = self.0.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let all = self.0.iter().map(|(name, _)| PathBuf::from(name));
        let found: Vec<_> = all.filter(|file| file.parent() == Some(path)).collect();
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }
}

fn read(files: &[(&str, &str)]) -> Result<Hba, Vec<String>> {
    let maps = files.iter().find(|(name, _)| *name == "ident").map(|(name, _)| Path::new(*name));
    let os_users = BTreeMap::from([(0, "root".to_owned()), (1000, "ann".to_owned())]);
    Hba::read(Path::new("hba"), maps, &MemoryFiles(files), Networks::from_kernel(), os_users)
        .map_err(|wrong| wrong.iter().map(ToString::to_string).collect())
}

fn hba(rules: &str, ident: &str) -> Hba {
    read(&[("hba", rules), ("ident", ident), ("admins", "root\n# nobody\n\"the boss\", eve\n")])
        .unwrap()
}

/// Describes a connection: `from` is an address, or a UID for a unix socket; `how` is `ssl`, or a
/// certificate's name.
fn connection<'a>(
    user: &'a str,
    database: &'a str,
    from: &str,
    how: &'a str,
) -> ConnectionInfo<'a> {
    let from = match from.parse() {
        Ok(uid) => ClientOrigin::Unix { uid: Some(uid) },
        Err(_) => ClientOrigin::Tcp(Some(from.parse().unwrap())),
    };
    let name = how.strip_prefix("cn=");
    let certificate = name.map(|name| ClientCertificate { common_name: Some(name) });
    let (is_tls, is_physical) = (!how.is_empty(), database == "<replication>");
    ConnectionInfo { user, database, is_physical, from, is_tls, certificate }
}

#[test]
fn first_matching_rule_decides() {
    use HbaRefusal::{NoRule, Peer, Rejected};
    use RequiredAuth::{Md5, Plain, ScramSha256, Trust, Verified};
    type HbaCase<'a> = (&'a str, [&'a str; 4], Result<RequiredAuth, HbaRefusal>);
    let cases: &[HbaCase<'_>] = &[
        ("local all all trust", ["a", "d", "1000", ""], Ok(Trust)),
        ("local all all trust", ["a", "d", "127.0.0.1", ""], Err(NoRule)),
        ("host all all 127.0.0.1/32 md5", ["a", "d", "127.0.0.1", ""], Ok(Md5)),
        ("host all all 127.0.0.1/32 md5", ["a", "d", "127.0.0.2", ""], Err(NoRule)),
        ("host all all 127.0.0.1/32 md5", ["a", "d", "1000", ""], Err(NoRule)),
        ("host all all 10.0.0.0 255.0.0.0 password", ["a", "d", "10.9.9.9", ""], Ok(Plain)),
        ("host all all ::1/128 trust", ["a", "d", "::1", ""], Ok(Trust)),
        ("host all all 10.0.0.0/8 trust", ["a", "d", "::ffff:10.0.0.1", ""], Ok(Trust)),
        ("host all all all trust", ["a", "d", "2001:db8::1", ""], Ok(Trust)),
        ("host all all samehost trust", ["a", "d", "127.0.0.1", ""], Ok(Trust)),
        ("host all all samehost trust", ["a", "d", "192.0.2.1", ""], Err(NoRule)),
        ("host all all samenet trust", ["a", "d", "127.0.0.9", ""], Ok(Trust)),
        ("hostssl all all all trust", ["a", "d", "127.0.0.1", "ssl"], Ok(Trust)),
        ("hostssl all all all trust", ["a", "d", "127.0.0.1", ""], Err(NoRule)),
        ("hostnossl all all all trust", ["a", "d", "127.0.0.1", "ssl"], Err(NoRule)),
        ("hostnossl all all all trust", ["a", "d", "127.0.0.1", ""], Ok(Trust)),
        ("hostgssenc all all all trust", ["a", "d", "127.0.0.1", ""], Err(NoRule)),
        ("hostnogssenc all all all trust", ["a", "d", "127.0.0.1", ""], Ok(Trust)),
        ("local d,e a,b scram-sha-256", ["b", "e", "0", ""], Ok(ScramSha256)),
        ("local d, e a, b scram-sha-256", ["b", "e", "0", ""], Ok(ScramSha256)),
        ("local d,e a,b scram-sha-256", ["c", "e", "0", ""], Err(NoRule)),
        ("local sameuser all trust", ["a", "a", "0", ""], Ok(Trust)),
        ("local sameuser all trust", ["a", "b", "0", ""], Err(NoRule)),
        ("local \"sameuser\" all trust", ["a", "a", "0", ""], Err(NoRule)),
        ("local \"sameuser\" all trust", ["a", "sameuser", "0", ""], Ok(Trust)),
        ("local \"all\" \"all\" trust", ["a", "d", "0", ""], Err(NoRule)),
        ("local \"my db\" \"a \"\"b\"\"\" trust", ["a \"b\"", "my db", "0", ""], Ok(Trust)),
        ("local all all trust", ["a", "<replication>", "0", ""], Err(NoRule)),
        ("local replication all trust", ["a", "<replication>", "0", ""], Ok(Trust)),
        ("local replication all trust", ["a", "replication", "0", ""], Err(NoRule)),
        ("local \"replication\" all trust", ["a", "replication", "0", ""], Ok(Trust)),
        ("local all @admins trust", ["root", "d", "0", ""], Ok(Trust)),
        ("local all @admins trust", ["the boss", "d", "0", ""], Ok(Trust)),
        ("local all x,@admins trust", ["eve", "d", "0", ""], Ok(Trust)),
        ("local all \"@admins\" trust", ["eve", "d", "0", ""], Err(NoRule)),
        ("local all \"@admins\" trust", ["@admins", "d", "0", ""], Ok(Trust)),
        ("local /^shop_\\d+$ all trust", ["a", "shop_12", "0", ""], Ok(Trust)),
        ("local /^shop_\\d+$ all trust", ["a", "shop_x", "0", ""], Err(NoRule)),
        ("local all /^a,\"/b c$\" trust", ["xb c", "d", "0", ""], Ok(Trust)),
        ("local all a reject\nlocal all all trust", ["a", "d", "0", ""], Err(Rejected)),
        ("local all a reject\nlocal all all trust", ["b", "d", "0", ""], Ok(Trust)),
        ("local all all md5 # x\nlocal all all trust", ["b", "d", "0", ""], Ok(Md5)),
        ("local all \\\n all trust", ["b", "d", "0", ""], Ok(Trust)),
        ("local all all peer", ["ann", "d", "1000", ""], Ok(Verified)),
        ("local all all ident", ["ann", "d", "1000", ""], Ok(Verified)),
        ("local all all peer", ["bob", "d", "1000", ""], Err(Peer)),
        ("local all all peer", ["ann", "d", "4711", ""], Err(Peer)),
        ("local all all peer map=m", ["postgres", "d", "0", ""], Ok(Verified)),
        ("local all all peer map=m", ["root", "d", "0", ""], Err(Peer)),
        ("local all all peer map=none", ["root", "d", "0", ""], Err(Peer)),
        ("local all all peer \"map=two words\"", ["anybody", "d", "1000", ""], Ok(Verified)),
    ];
    let ident = "m root postgres # the boss\n\"two words\" ann all\n";
    for (rules, [user, database, from, how], expected) in cases {
        let judged = hba(rules, ident).required_auth(&connection(user, database, from, how));
        assert_eq!(judged, *expected, "{rules}: {user} {database} {from} {how}");
    }
}

#[test]
fn certificates_authenticate_users() {
    use HbaRefusal::Certificate as Wrong;
    let cases: &[(&str, &str, &str, Result<RequiredAuth, HbaRefusal>)] = &[
        ("cert", "ann", "cn=ann", Ok(RequiredAuth::Verified)),
        ("cert", "bob", "cn=ann", Err(Wrong)),
        ("cert", "ann", "ssl", Err(Wrong)),
        ("cert clientcert=verify-full", "ann", "cn=ann", Ok(RequiredAuth::Verified)),
        ("cert clientname=CN", "ann", "cn=ann", Ok(RequiredAuth::Verified)),
        ("cert map=mail", "ann", "cn=ann@example.com", Ok(RequiredAuth::Verified)),
        ("cert map=mail", "ann", "cn=ann@example.org", Err(Wrong)),
        ("cert map=mail", "bob", "cn=ann@example.com", Err(Wrong)),
        ("cert map=mail", "all", "cn=all@example.com", Ok(RequiredAuth::Verified)),
        ("cert map=mail", "bob", "cn=all@example.com", Err(Wrong)),
        ("cert map=mail", "app_7", "cn=apps", Ok(RequiredAuth::Verified)),
        ("cert map=mail", "app_x", "cn=apps", Err(Wrong)),
        ("md5 clientcert=verify-full", "ann", "cn=ann", Ok(RequiredAuth::Md5)),
        ("md5 clientcert=verify-full", "ann", "cn=bob", Err(Wrong)),
        ("md5 clientcert=verify-ca", "ann", "cn=bob", Ok(RequiredAuth::Md5)),
        ("md5 clientcert=verify-ca", "ann", "ssl", Err(Wrong)),
        ("reject clientcert=verify-ca", "ann", "ssl", Err(HbaRefusal::Rejected)),
    ];
    let ident = "mail /^(.*)@example\\.com$ \\1\nmail apps /^app_\\d$\n";
    for (method, user, how, expected) in cases {
        let hba = hba(&format!("hostssl all all all {method}"), ident);
        let judged = hba.required_auth(&connection(user, "d", "127.0.0.1", how));
        assert_eq!(judged, *expected, "{method}: {user} {how}");
    }
}

#[test]
fn included_files_are_read() {
    let files = [
        ("hba", "include sub/a\ninclude_if_exists nowhere\ninclude_dir sub/d\n"),
        ("sub/a", "include b\n"),
        ("sub/b", "local all a md5\n"),
        ("sub/d/2.conf", "local all all reject\n"),
        ("sub/d/1.conf", "local all b trust\n"),
        ("sub/d/.hidden.conf", "broken\n"),
        ("sub/d/other.txt", "broken\n"),
    ];
    let hba = read(&files).unwrap();
    let judge = |user| hba.required_auth(&connection(user, "d", "0", ""));
    assert_eq!(judge("a"), Ok(RequiredAuth::Md5));
    assert_eq!(judge("b"), Ok(RequiredAuth::Trust));
    assert_eq!(judge("c"), Err(HbaRefusal::Rejected));
}

#[test]
fn errors_are_reported_with_file_and_line() {
    let long = "x ".repeat(TOO_MANY_TOKENS);
    let cases: &[(&str, &str, &str)] = &[
        ("local all", "", "hba:1: a rule must have a type"),
        ("\n\nlocal all all", "", "hba:3: a method is missing"),
        ("remote all all all trust", "", "hba:1: \"remote\" is not a connection type"),
        ("local all +dba trust", "", "hba:1: +dba is not supported"),
        ("local samerole all trust", "", "hba:1: samerole is not supported"),
        ("host all all db.example.com trust", "", "hba:1: \"db.example.com\" is not an address"),
        ("host all all 10.0.0.1 trust", "", "hba:1: 10.0.0.1 needs a mask"),
        ("host all all 10.0.0.1", "", "hba:1: 10.0.0.1 needs a mask"),
        ("host all all 10.0.0.1 ffff:: md5", "", "hba:1: 10.0.0.1 and its mask"),
        ("host all all 10.0.0.1/99 md5", "", "hba:1: \"10.0.0.1/99\": the address has fewer"),
        ("host all all all", "", "hba:1: a method is missing"),
        ("host all all a,b trust", "", "hba:1: one address is expected"),
        ("local all all kerberos", "", "hba:1: method \"kerberos\" is not supported"),
        ("host all all all ident", "", "hba:1: ident is only valid for local"),
        ("local all all cert", "", "hba:1: cert is not valid for local"),
        (
            "host all all all md5 clientcert=verify-ca",
            "",
            "hba:1: clientcert is only valid for hostssl",
        ),
        ("hostssl all all all md5 clientcert=1", "", "hba:1: clientcert must be verify-ca"),
        ("hostssl all all all md5 map=x", "", "hba:1: map is only valid for the methods"),
        ("hostssl all all all cert clientname=DN", "", "hba:1: clientname must be CN"),
        ("local all all trust ldapserver=x", "", "hba:1: option \"ldapserver\" is not supported"),
        ("local all all trust x", "", "hba:1: \"x\" is not an option"),
        ("local all \"a trust", "", "hba:1: unterminated quote"),
        ("local /( all trust", "", "hba:1: \"(\" is not a valid regular expression"),
        ("local @nowhere all trust", "", "hba:1: cannot read nowhere"),
        ("local @again all trust", "", "hba:1: files are included more than 10 levels deep"),
        ("include nowhere", "", "hba:1: cannot read nowhere"),
        ("include a b", "", "hba:1: include takes one file name"),
        ("include_dir nowhere", "", "hba:1: cannot read nowhere"),
        ("include hba", "", "hba:1: files are included more than 10 levels deep"),
        ("include hba\ninclude hba\ninclude hba", "", "hba:1: files are included more"),
        ("local all @long trust", "", "hba:1: there are more than 1000000 tokens"),
        ("# nothing", "", "hba: there is no rule"),
        ("local all all trust", "m root", "ident:1: a line must have a map name"),
        ("local all all trust", "m root a,b", "ident:1: one name is expected"),
        ("local all all trust", "m root \\1x\nm /^x$ \\1", "ident:2: \"\\\\1\" refers to a group"),
        ("local all all trust", "m root +dba", "ident:1: +dba is not supported"),
    ];
    for (rules, ident, expected) in cases {
        let files = [("hba", *rules), ("ident", *ident), ("again", "@again"), ("long", &long)];
        let wrong = read(&files).unwrap_err();
        assert!(wrong[0].starts_with(expected), "{rules}: {wrong:?}");
        assert!(wrong.len() <= 101, "{}", wrong.len());
    }
    let missing = read(&[]).unwrap_err();
    assert!(missing[0].starts_with("hba: cannot be read"), "{missing:?}");
}

/// One token more than a file may have.
const TOO_MANY_TOKENS: usize = 1_000_001;
