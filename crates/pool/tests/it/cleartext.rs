//! Passwords in the clear, as long as PgBouncer takes them, from clients and to a server.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
};

use howdah_lab::{Cluster, or_say_why_not};

use crate::support::{connect, pooler_of};

#[test]
fn token_of_65530_bytes_logs_in_at_pooler_and_server() {
    let server = or_say_why_not("token", Cluster::builder().name("pool-token").start());
    let Some(mut server) = server else { return };
    let token = "t0".repeat(65_530 / 2);
    let mut client = connect(&server.uri("postgres")).unwrap();
    client.query(&format!("create role app login password '{token}'")).unwrap();
    client.close();
    let rules = server.data_dir().join("pg_hba.conf");
    let owner = fs::metadata(server.data_dir()).unwrap();
    fs::write(&rules, "host all postgres all trust\nhost all app all password\n").unwrap();
    fs::set_permissions(&rules, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&rules, Some(owner.uid()), Some(owner.gid())).unwrap();
    server.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("userlist.txt");
    fs::write(&list, format!("\"app\" \"{token}\"\n")).unwrap();
    // The smallest buffers: the message goes out in many pieces.
    let pooler = pooler_of(&format!(
        "[pool]\nworkers = 1\n[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.tcp]\nbuffer-bytes = 4096\n\
         [pool.auth]\ntype = 'plain'\nfile = '{}'\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1']\nport = {}\n",
        list.display(),
        server.port()
    ));
    let port = pooler.addresses()[0].port();
    let words = |password: &str| {
        format!("host=127.0.0.1 port={port} dbname=postgres user=app password={password}")
    };
    let mut client = connect(&words(&token)).unwrap();
    assert_eq!(client.one_value("select current_user::text").unwrap().as_deref(), Some("app"));
    assert!(connect(&words(&token[1..])).is_err());
}
