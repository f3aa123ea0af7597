//! Cleartext passwords of the maximum length, from clients and to a server.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
};

use howdah_lab::{Cluster, skip_without_postgres};

use crate::support::{connect, start_pooler_with};

#[test]
fn token_of_65530_bytes_logs_in_to_pooler_and_server() {
    let server = skip_without_postgres("token", Cluster::builder().name("pool-token").start());
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
    // The smallest buffers, so that the message is sent in many pieces.
    let pooler = start_pooler_with(&format!(
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
