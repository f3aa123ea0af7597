//! Checks before a start whether the files, directories and addresses in the settings can be used.
//! Nothing stays open, and a running pooler with the same settings is not disturbed.

use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    os::unix::{ffi::OsStrExt as _, fs::FileTypeExt as _},
    path::Path,
};

use howdah_capture::RedactionKey;
use howdah_connect::{
    Endpoint,
    tls::{self, TlsError},
};
use howdah_net::Listener;
use howdah_pool_config::Config;
use howdah_pool_core::WorkerId;
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{
    PoolerStartError, directory::ServerTls, group, listen_sockets, reload::error_chain, takeover,
    tls as client_tls,
};

/// Problems that would prevent or impair a start with the checked settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// Keys below `[pool]`, and the reasons why their values cannot be used.
    pub errors: Vec<(String, String)>,
    /// Keys and descriptions of conditions that may be intended, such as a port in use by a pooler
    /// that is to be taken over.
    pub warnings: Vec<(String, String)>,
}

/// Maximum length of a unix socket's path: `sun_path` in unix(7), without its final zero byte.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Checks everything that a start or a capture with these settings opens: certificates and keys,
/// addresses, directories, the group of unix sockets, the folder and the redaction key for
/// captures. Other files were read with the settings. `listens` is whether the addresses of
/// `[pool.listen]` are used; a process that gets its sockets from a service manager uses none of
/// them.
pub fn preflight(config: &Config, listens: bool) -> Preflight {
    let mut found = Preflight::default();
    found.tls(config);
    if listens {
        found.addresses(config);
        found.directories(config);
    }
    if let Some(name) = &config.listen.unix_group
        && let Err(error) = group::gid(name)
    {
        found.error("listen.unix-group", error_chain(&error));
    }
    if let Some(path) = &config.listen.takeover {
        found.writable("listen.takeover", path.parent().unwrap_or(Path::new("")));
    }
    found.capture(config);
    found.peers(config);
    let workers_max = usize::from(WorkerId::MAX) + 1;
    if let Some(workers) = config.workers.filter(|workers| workers.get() > workers_max) {
        found.error("workers", format!("{workers} is more than the maximum of {workers_max}"));
    }
    found
}

impl Preflight {
    fn error(&mut self, key: &str, text: impl Into<String>) {
        self.errors.push((key.to_owned(), text.into()));
    }

    /// Checks each TLS file separately, to report all invalid ones, and then whether they match.
    fn tls(&mut self, config: &Config) {
        let before = self.errors.len();
        for (side, leg, is_used) in [
            ("client", &config.tls.client, config.tls.client_mode()),
            ("server", &config.tls.server, config.tls.server_mode()),
        ]
        .map(|(side, leg, mode)| (side, leg, mode != howdah_connect::SslMode::Disable))
        {
            type FileCheck = fn(&Path) -> Result<(), TlsError>;
            let files: [(&str, &Option<_>, FileCheck); 3] = [
                ("certificate", &leg.certificate, tls::check_certificates),
                ("key", &leg.key, tls::check_private_key),
                ("ca-file", &leg.ca_file, tls::check_authorities),
            ];
            for (name, path, check) in files {
                if let Some(path) = path.as_deref().filter(|_| is_used)
                    && let Err(error) = check(path)
                {
                    self.error(&format!("tls.{side}.{name}"), error_chain(&error));
                }
            }
        }
        if self.errors.len() > before {
            return;
        }
        let made =
            [client_tls::server_config(&config.tls).map(drop), ServerTls::new(config).map(drop)];
        for error in made.into_iter().filter_map(Result::err) {
            match error {
                PoolerStartError::ClientTls { key, source }
                | PoolerStartError::ServerTls { key, source } => {
                    self.error(&key, error_chain(&source));
                }
                other => self.error("tls", error_chain(&other)),
            }
        }
    }

    /// Resolves the host names of peers. A name may exist only once a pooler runs, and it is looked
    /// up regularly, so an unknown one is a warning.
    fn peers(&mut self, config: &Config) {
        for (_, peer) in config.peers.others() {
            if let Endpoint::Tcp { host, hostaddr: None, port } = peer.endpoint(config.listen.port)
                && let Err(error) = (host.as_str(), port).to_socket_addrs()
            {
                let text = format!("cannot resolve the host name {host:?}: {error}");
                self.warnings.push(("peers".to_owned(), text));
            }
        }
    }

    fn addresses(&mut self, config: &Config) {
        let listen = &config.listen;
        for text in &listen.addresses {
            match listen_sockets::resolve_address(text, listen.port) {
                Ok(addresses) => addresses.into_iter().for_each(|address| self.address(address)),
                Err(error) => self.error("listen.addresses", error_chain(&error)),
            }
        }
    }

    fn address(&mut self, address: SocketAddr) {
        let Err(error) = Listener::check_free(address) else { return };
        let key = "listen.addresses".to_owned();
        match error.source.kind() {
            io::ErrorKind::AddrInUse => {
                let text = format!(
                    "{address} is in use: starting fails unless it takes over from the pooler there"
                );
                self.warnings.push((key, text));
            }
            _ => self.errors.push((key, error_chain(&error))),
        }
    }

    fn directories(&mut self, config: &Config) {
        let listen = &config.listen;
        for directory in &listen.unix_directories {
            let path = directory.join(format!(".s.PGSQL.{}", listen.port));
            if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                let path = path.display();
                let text = format!("{path} is longer than the 107 bytes allowed for a unix socket");
                self.error("listen.unix-directories", text);
            } else if !directory.as_os_str().as_bytes().starts_with(b"@") {
                self.writable("listen.unix-directories", directory);
                self.socket("listen.unix-directories", &path);
            }
        }
        if let Some(path) = takeover::socket_path(config) {
            self.socket("listen.takeover", &path);
        }
    }

    /// Checks that a path does not exist, or is a socket, which would be replaced.
    fn socket(&mut self, key: &str, path: &Path) {
        let found = fs::symlink_metadata(path);
        if found.is_ok_and(|it| !it.file_type().is_socket()) {
            self.error(key, format!("{} exists and is not a socket", path.display()));
        }
    }

    /// Checks that files can be created in a directory.
    fn writable(&mut self, key: &str, directory: &Path) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let shown = directory.display();
        match fs::metadata(directory) {
            Err(error) => self.error(key, format!("{shown}: {error}")),
            Ok(it) if !it.is_dir() => self.error(key, format!("{shown} is not a directory")),
            Ok(_) => {
                let access = Access::WRITE_OK | Access::EXEC_OK;
                if let Err(error) = accessat(CWD, directory, access, AtFlags::EACCESS) {
                    let error = io::Error::from(error);
                    self.error(key, format!("cannot create files in {shown}: {error}"));
                }
            }
        }
    }

    fn capture(&mut self, config: &Config) {
        let capture = &config.capture;
        if let Some(folder) = &capture.path {
            // Missing directories are created at the start of a capture.
            let there = folder.ancestors().find(|path| path.exists());
            self.writable("capture.path", there.unwrap_or(Path::new("")));
        }
        if let Some(path) = capture.redact_key.as_ref().filter(|_| capture.redact) {
            let read = File::open(path).and_then(|_| fs::read(path));
            let made = read.map_err(|error| error.to_string()).and_then(|bytes| {
                RedactionKey::from_secret(&bytes).map(drop).map_err(|error| error_chain(&error))
            });
            if let Err(text) = made {
                self.error("capture.redact-key", format!("{}: {text}", path.display()));
            }
        }
    }
}
