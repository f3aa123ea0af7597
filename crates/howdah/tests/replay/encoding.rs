//! What bytes arrive, whatever encodings the client, the captured database and the target had.

use crate::{
    logs::Log,
    support::{Stage, replay},
};

const INSERT: &str = "insert into t values ('caf\u{e9}')";

fn stage(name: &str) -> Option<Stage> {
    let stage = Stage::new(name)?;
    stage.client().query("create table t (text text)").unwrap();
    Some(stage)
}

#[test]
fn a_captured_client_encoding_does_not_change_how_the_log_is_read() {
    let Some(stage) = stage("encoding_set") else { return };
    let mut log = Log::new("encoding_set");
    let names = "set names 'WIN1252'";
    log.session(1, &["set client_encoding = 'LATIN1'", INSERT, names, INSERT]);
    // So does a role whose clients speak another.
    stage.client().query("create role encoding_latin login").unwrap();
    stage.client().query("alter role encoding_latin set client_encoding = 'LATIN1'").unwrap();
    stage.client().query("grant insert on t to encoding_latin").unwrap();
    log.user("encoding_latin").session(2, &[INSERT]);
    stage.replay(&log.text, &[]).assert_all_done();
    assert_eq!(stage.value("select count(*) from t where text = 'caf\u{e9}'"), "3");
}

#[test]
fn a_log_of_a_latin1_database_is_replayed_to_one_of_utf8() {
    let Some(stage) = stage("encoding_mark") else { return };
    let mut log = Log::new("encoding_mark");
    log.session(1, &["set client_encoding = 'UTF8'", INSERT]);
    // As a database in LATIN1 logs it.
    let latin: Vec<u8> = log.text.chars().map(|c| u8::try_from(c).unwrap()).collect();
    std::fs::write(stage.path("latin.log"), latin).unwrap();
    let mark = ["--encoding", "other=KOI8R", "--encoding", "encoding_mark=latin1"];
    replay(stage.folder.path(), "latin.log", &stage.uri(), &mark).assert_all_done();
    // A capture remembers.
    let mut import = crate::support::howdah(stage.folder.path());
    import.args(["capture", "import", "latin.log", "-o", "latin"]).args(mark).assert().success();
    replay(stage.folder.path(), "latin", &stage.uri(), &[]).assert_all_done();
    assert_eq!(stage.value("select count(*) from t where text = 'caf\u{e9}'"), "2");
}
