//! Text encodings of the client, the captured database and the target.

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, replay},
};

const INSERT: &str = "insert into t values ('caf\u{e9}')";

fn new_fixture(name: &str) -> Option<ReplayFixture> {
    let fixture = ReplayFixture::new(name)?;
    fixture.client().query("create table t (text text)").unwrap();
    Some(fixture)
}

#[test]
fn captured_client_encoding_does_not_affect_log_encoding() {
    let Some(fixture) = new_fixture("encoding_set") else { return };
    let mut log = LogBuilder::new("encoding_set");
    let names = "set names 'WIN1252'";
    log.session(1, &["set client_encoding = 'LATIN1'", INSERT, names, INSERT]);
    // The same for a role with another client_encoding.
    fixture.client().query("create role encoding_latin login").unwrap();
    fixture.client().query("alter role encoding_latin set client_encoding = 'LATIN1'").unwrap();
    fixture.client().query("grant insert on t to encoding_latin").unwrap();
    log.user("encoding_latin").session(2, &[INSERT]);
    fixture.replay(&log.text, &[]).assert_all_done();
    assert_eq!(fixture.value("select count(*) from t where text = 'caf\u{e9}'"), "3");
}

#[test]
fn latin1_log_is_replayed_to_utf8_database() {
    let Some(fixture) = new_fixture("encoding_mark") else { return };
    let mut log = LogBuilder::new("encoding_mark");
    log.session(1, &["set client_encoding = 'UTF8'", INSERT]);
    // The bytes that a LATIN1 database logs.
    let latin: Vec<u8> = log.text.chars().map(|c| u8::try_from(c).unwrap()).collect();
    std::fs::write(fixture.path("latin.log"), latin).unwrap();
    let mark = ["--encoding", "other=KOI8R", "--encoding", "encoding_mark=latin1"];
    replay(fixture.folder.path(), "latin.log", &fixture.uri(), &mark).assert_all_done();
    // A capture has the encoding applied, so its replay needs no option.
    let mut import = fixture.howdah();
    import.args(["capture", "import", "latin.log", "-o", "latin"]).args(mark).assert().success();
    replay(fixture.folder.path(), "latin", &fixture.uri(), &[]).assert_all_done();
    assert_eq!(fixture.value("select count(*) from t where text = 'caf\u{e9}'"), "2");
}
