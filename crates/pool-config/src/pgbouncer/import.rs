//! Converts a `pgbouncer.ini` to a `howdah.toml`.

use std::{fmt::Write as _, path::Path};

use howdah_settings::SettingsErrors;

use super::{super::Config, IniReader, KEYS, differences::difference};

impl Config {
    /// Converts a `pgbouncer.ini`, with its included files, to an equivalent `[pool]` section. A
    /// comment above a key explains how it differs from PgBouncer's; keys without effect are listed
    /// at the top. Other files, such as the user list, are not copied.
    ///
    /// # Errors
    ///
    /// The file has unknown keys or invalid values, or an included file cannot be read.
    pub fn import_pgbouncer(text: &str, path: &Path) -> Result<String, SettingsErrors> {
        let mut reader = IniReader::read(text, path)?;
        reader.config.resolve_paths(path.parent().unwrap_or(Path::new("")));
        let comments: Vec<_> = KEYS
            .iter()
            .filter(|key| reader.keys.contains(&key.name))
            .filter_map(|key| {
                let (target, text) = (key.target()?, difference(key.name)?);
                Some((target.to_owned(), format!("{}: {text}", key.name)))
            })
            .collect();
        let body = reader.config.to_toml_with(&comments);
        let mut text = format!("# From {}\n", path.display().to_string().replace('\n', " "));
        if !reader.warnings.is_empty() {
            text.push_str("#\n# Keys without effect:\n");
        }
        for warning in &reader.warnings {
            let _ = writeln!(text, "#   {}", warning.to_string().replace('\n', " "));
        }
        // Keys with default values are not written, but their differences are relevant as well.
        let has_comment = |comment: &str| body.contains(&format!("# {comment}\n"));
        let unwritten: Vec<_> =
            comments.iter().filter(|(_, comment)| !has_comment(comment)).collect();
        if !unwritten.is_empty() {
            text.push_str("#\n# Keys with default values that differ from PgBouncer:\n");
        }
        for (ours, comment) in unwritten {
            let _ = writeln!(text, "#   {comment} ({ours})");
        }
        text.push('\n');
        text.push_str(&body);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Imports a file, checks that the result reads as the same configuration, and returns the
    /// result.
    fn import(ini: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let ini = ini.replace("{folder}", &folder.path().display().to_string());
        let ini = ini.replace("{host}", "db").replace("{port}", "5433");
        fs::write(at("pgbouncer.ini"), &ini).unwrap();
        fs::write(at("userlist.txt"), "\"u\" \"secret\"\n").unwrap();
        fs::write(at("hba"), "local all all trust\n").unwrap();
        fs::write(at("ident"), "").unwrap();
        fs::write(at("more.ini"), "[databases]\nmore = host=more\n").unwrap();
        let text = Config::import_pgbouncer(&ini, &at("pgbouncer.ini")).unwrap();
        fs::write(at("howdah.toml"), &text).unwrap();
        let read = |name| Config::read(&at(name)).unwrap_or_else(|error| panic!("{error}\n{text}"));
        // The ini's names are relative to a working directory, which import takes for this folder.
        let mut original = read("pgbouncer.ini").config;
        original.resolve_paths(folder.path());
        assert_eq!(read("howdah.toml").config, original, "{text}");
        text.replace(&folder.path().display().to_string(), "FOLDER")
    }

    #[test]
    fn imported_file_is_equivalent() {
        let every = include_str!("every-key.ini");
        let text = import(every);
        assert!(text.contains("# Keys without effect:\n#   FOLDER/pgbouncer.ini:"), "{text}");
        assert!(!text.contains("secret = \"secret\""), "the user list is not copied");
        import("[databases]\na =\n");
        import(
            "[databases]\na = host=x user=u password='it''s \"quoted\"' connect_query='set a=1'\n",
        );
        import(
            "[databases]\n* = host=/run,10.0.0.1 port=7\n[pgbouncer]\nserver_lifetime=0.25\n\
              server_check_query =\nauth_type = trust\nunix_socket_dir =\nlisten_addr = *\n",
        );
        import(
            "[databases]\n'my db' = \n'q.x' = dbname=\"x\"\n%include more.ini\n[pgbouncer]\n\
              auth_file = {folder}/userlist.txt\n",
        );
    }

    #[test]
    fn differences_are_listed_in_comments() {
        let text = import(
            "[databases]\na =\n[pgbouncer]\nlisten_addr = *\nserver_login_retry = 3\n\
                         default_pool_size = 20\npkt_buf = 1\n",
        );
        let expected = "\
# From FOLDER/pgbouncer.ini
#
# Keys without effect:
#   FOLDER/pgbouncer.ini:7: pkt_buf: a worker has one buffer for all its connections
#
# Keys with default values that differ from PgBouncer:
#   default_pool_size: exact across all workers (sizes.pool)

[pool]
allow-cleartext-password = true
shutdown-mode = \"wait-for-clients\"

[pool.auth]
type = \"md5\"

[pool.databases.a]

[pool.listen]
addresses = [\"*\"]

[pool.log]
syslog-name = \"pgbouncer\"

[pool.timeouts]
# server_login_retry: the longest pause: the first is short, and each one doubles. Meanwhile logins of new clients fail at once, and clients that have logged in wait
server-login-retry = 3
";
        assert_eq!(text, expected);
    }
}
