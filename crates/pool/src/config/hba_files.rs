//! The files that say who may come in, and what the machine knows that they are about.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Auth,
    file::{Remark, read_text},
};
use crate::hba::{Files, Hba, HbaError, Networks};

/// Files on the disk.
struct Disk;

impl Files for Disk {
    fn text(&self, path: &Path) -> io::Result<String> {
        read_text(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect()
    }
}

impl Auth {
    /// Reads `hba_file` and `ident_file`, if there are any. Gives what is wrong with them.
    pub(super) fn read_rules(&mut self) -> Vec<Remark> {
        self.hba = None;
        let Some(rules) = &self.hba_file else { return Vec::new() };
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let users = os_users(&passwd);
        let maps = self.ident_file.as_deref();
        match Hba::read(rules, maps, &Disk, Networks::of_machine(), users) {
            Ok(hba) => {
                self.hba = Some(Arc::new(hba));
                Vec::new()
            }
            Err(wrong) => {
                let remark =
                    |HbaError { file, line, text }| Remark { file, line, key: String::new(), text };
                wrong.into_iter().map(remark).collect()
            }
        }
    }
}

/// Names of the system's users, by number: the lines `name:password:uid:...` of passwd(5). Where two
/// have one number, the first counts, as for the system itself.
fn os_users(passwd: &str) -> BTreeMap<u32, String> {
    let mut users = BTreeMap::new();
    for line in passwd.lines() {
        let mut fields = line.split(':');
        let name = fields.next().unwrap_or_default();
        if let Some(uid) = fields.nth(1).and_then(|uid| uid.parse().ok()) {
            users.entry(uid).or_insert_with(|| name.to_owned());
        }
    }
    users
}

#[test]
fn users_of_the_system_are_found_by_number() {
    let users = os_users("root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\nbroken\nann:x:7:7:::\n");
    assert_eq!(users, BTreeMap::from([(0, "root".to_owned()), (7, "ann".to_owned())]));
}
