//! [`S3Server`]: an S3 server in a process of its own.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use howdah_lab::wait_for;

use crate::support::TIMEOUT;

/// s3rver, with its data in a folder. It accepts one access key.
pub(super) struct S3Server {
    process: Option<Child>,
    folder: tempfile::TempDir,
    program: PathBuf,
    bucket: String,
    port: u16,
}

/// The access key and the secret that s3rver expects.
const KEY: &str = "S3RVER";

/// The suffix of the files with the content of objects.
const OBJECT_SUFFIX: &str = "._S3rver_object";

impl S3Server {
    /// Starts a server with a bucket; `None`, with a message on stderr, if it is not installed.
    pub(super) fn start(bucket: &str) -> Option<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let tools = match std::env::var_os("HOWDAH_S3RVER") {
            Some(folder) => PathBuf::from(folder),
            None => workspace.join("target/tools/s3rver"),
        };
        let program = tools.join("node_modules/.bin/s3rver");
        if !program.exists() {
            let required =
                std::env::var_os("HOWDAH_RECEIVERS_REQUIRED").is_some_and(|value| value == "1");
            assert!(!required, "s3rver is missing: scripts/setup installs it");
            // Written to stderr directly, which the test harness does not capture.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: s3rver is missing: scripts/setup installs it"
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let (process, bucket) = (None, bucket.to_owned());
        let mut server = Self { process, folder, program, bucket, port: 0 };
        server.run();
        Some(server)
    }

    /// The environment variables with the endpoint and the credentials.
    pub(super) fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    pub(super) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Rejects some connections, and then starts the server again on the same port.
    pub(super) fn restart_after_refusals(&mut self, connections: usize) {
        let listener = wait_for("the port to be free", TIMEOUT, || {
            TcpListener::bind(("127.0.0.1", self.port)).ok()
        });
        for _ in 0..connections {
            // Closed without a response.
            drop::<(TcpStream, _)>(listener.accept().unwrap());
        }
        drop(listener);
        self.run();
    }

    /// Whether an object exists.
    pub(super) fn has(&self, bucket: &str, key: &str) -> bool {
        self.folder.path().join(bucket).join(format!("{key}{OBJECT_SUFFIX}")).exists()
    }

    /// Copies the objects below a prefix to a folder.
    pub(super) fn copy(&self, bucket: &str, prefix: &str, to: &Path) {
        copy(&self.folder.path().join(bucket).join(prefix), to);
    }

    fn run(&mut self) {
        let mut process = Command::new(&self.program)
            .arg("--directory")
            .arg(self.folder.path())
            .args(["--address", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--configure-bucket", &self.bucket])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        self.process = Some(process);
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the server did not start");
        }
        self.port = line.trim_end().rsplit_once(':').unwrap().1.parse().unwrap();
        // It logs every request, and stops when the pipe is full.
        std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(name));
        } else if let Some(name) = name.strip_suffix(OBJECT_SUFFIX) {
            fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
}
