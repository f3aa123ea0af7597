use howdah_sql::UndetectableState;

use super::*;

fn steps(sql: &str) -> Vec<TextStep> {
    let effects = text_effects(sql.as_bytes());
    assert!(effects.is_readable, "{sql}");
    effects.steps
}

fn left(kind: StateKind, name: &str) -> TextStep {
    TextStep::Leave(kind, fixed(name))
}

fn remove(kind: StateKind, name: &str) -> TextStep {
    TextStep::Remove(StateRemoval::One(kind, fixed(name)))
}

fn lock(keys: &[&str]) -> StateName {
    StateName::Arguments(keys.iter().map(|it| LockArgument::Constant((*it).into())).collect())
}

#[test]
fn statements_leave_and_remove_named_state() {
    use StateKind::{Channel, Cursor, PreparedStatement, Setting, Temporary};
    let all = |kind| TextStep::Remove(StateRemoval::AllOfKind(kind));
    for (sql, expected) in [
        ("set work_mem = '1GB'", vec![left(Setting, "work_mem")]),
        ("set local work_mem = '1GB'", vec![]),
        ("set TimeZone = 'UTC'", vec![]),
        ("select set_config('App.Tenant', '7', false)", vec![left(Setting, "app.tenant")]),
        ("reset Work_Mem", vec![remove(Setting, "work_mem")]),
        ("set work_mem to default", vec![remove(Setting, "work_mem")]),
        ("reset all", vec![all(Setting)]),
        ("discard all", vec![TextStep::Remove(StateRemoval::Everything)]),
        ("discard temp", vec![all(Temporary)]),
        ("create temp table a (x int)", vec![left(Temporary, "a")]),
        ("create temp table a (x int) on commit drop", vec![]),
        ("create temp table a on commit delete rows as select 1", vec![left(Temporary, "a")]),
        ("select 1 as x into temp a", vec![left(Temporary, "a")]),
        ("create table pg_temp.a (x int)", vec![left(Temporary, "a")]),
        ("create temp view v as select 1", vec![left(Temporary, "v")]),
        ("select * from pg_temp.a", vec![]),
        ("drop table if exists a, public.b", vec![remove(Temporary, "a"), remove(Temporary, "b")]),
        ("prepare P as select 1", vec![left(PreparedStatement, "p")]),
        ("deallocate p", vec![remove(PreparedStatement, "p")]),
        ("deallocate all", vec![all(PreparedStatement)]),
        ("declare c cursor with hold for select 1", vec![left(Cursor, "c")]),
        ("declare c cursor for select 1", vec![]),
        ("close c", vec![remove(Cursor, "c")]),
        ("close all", vec![all(Cursor)]),
        ("listen jobs", vec![left(Channel, "jobs")]),
        ("unlisten *", vec![all(Channel)]),
        ("select 1", vec![]),
    ] {
        assert_eq!(steps(sql), expected, "{sql}");
    }
    let undetectable =
        |state| vec![TextStep::Leave(StateKind::Undetectable(state), StateName::Unknown)];
    assert_eq!(steps("load 'x'"), undetectable(UndetectableState::Library));
    assert_eq!(
        steps("select set_config($1, 'x', false)"),
        undetectable(UndetectableState::UnnamedSetting)
    );
}

#[test]
fn locks_are_identified_by_their_keys() {
    let left_lock = |name| vec![TextStep::Leave(StateKind::AdvisoryLock, name)];
    assert_eq!(steps("select pg_advisory_lock(1)"), left_lock(lock(&["1"])));
    assert_eq!(steps("select pg_try_advisory_lock(1, '2'::int)"), left_lock(lock(&["1", "2"])));
    assert_eq!(steps("select pg_advisory_lock(id) from t"), left_lock(StateName::Unknown));
    assert_eq!(steps("select pg_advisory_xact_lock(1)"), []);
    let bound = StateName::Arguments(Box::new([LockArgument::Parameter(0)]));
    assert_eq!(steps("select pg_advisory_lock($1::bigint)"), left_lock(bound));
    assert_eq!(
        steps("select pg_advisory_unlock(9000000000)"),
        [TextStep::Remove(StateRemoval::One(StateKind::AdvisoryLock, lock(&["9000000000"])))]
    );
    // An expression has the same key wherever it is.
    let hashed = |sql| match &steps(sql)[0] {
        TextStep::Leave(_, name) | TextStep::Remove(StateRemoval::One(_, name)) => name.clone(),
        other => unreachable!("{other:?}"),
    };
    let key = hashed("select pg_advisory_lock(hashtext('job'))");
    assert_eq!(key, hashed("select 1, pg_advisory_unlock( hashtext('job'))"));
    assert_ne!(key, hashed("select pg_advisory_lock(hashtext('other'))"));
}

#[test]
fn steps_are_in_the_order_of_statements() {
    assert_eq!(
        steps("begin; set work_mem = 1; savepoint a; rollback to a; release a; commit and chain"),
        [
            TextStep::Begin,
            left(StateKind::Setting, "work_mem"),
            TextStep::Savepoint("a".into()),
            TextStep::RollbackTo("a".into()),
            TextStep::Release("a".into()),
            TextStep::Commit { chain: true },
        ]
    );
    let (may, reads) = (TextStep::MayAdvanceSequence, TextStep::ReadsSequence);
    assert_eq!(steps("select currval('s')"), std::slice::from_ref(&reads));
    assert_eq!(steps("insert into t values (1); select lastval()"), [may.clone(), reads.clone()]);
    assert_eq!(steps("insert into t values (currval('s'))"), [reads.clone(), may.clone()]);
    assert_eq!(steps("select nextval('s'), currval('s')"), [may.clone(), reads, may]);
    assert_eq!(
        steps("select app.f()"),
        [left(StateKind::Function, "app.f"), TextStep::MayAdvanceSequence]
    );
}

#[test]
fn texts_that_the_grammar_rejects_are_reported() {
    assert!(!text_effects(b"select from where").is_readable);
    assert!(!text_effects(b"set work_mem = 1; nonsense").is_readable);
}
