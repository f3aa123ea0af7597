//! Apache Kafka from Maven, as one broker without ZooKeeper; its own consumer reads values back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use howdah_connect::Environment;
use howdah_lab::wait_until;
use howdah_statsd::{
    backends,
    server::{ServerParts, StatsdServer},
    settings::{
        BackendSettings, KafkaFormat, KafkaSettings, ListenSettings, SaslMechanism, StatsdSettings,
    },
};

use crate::support::{
    NO_PERIODIC_FLUSH, RECEIVER_TIMEOUT, ReceiverProcess, TestCertificate, free_port, program,
    report_skipped, send, serve, stop, tools_folder, wait_for_port,
};

const TOPIC: &str = "howdah";
const PASSWORD: &str = "hunter2";

#[test]
fn kafka_receives_each_count_despite_a_broker_restart() {
    let Some(kafka) = KafkaInstallation::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = kafka.prepare(folder.path(), None);
    let running = broker.start();
    broker.create_topic();
    let server = broker.serve_every_second();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let count = |count: u32| {
        let packet = format!("hits:{count}|c|#code:200\nlatency:{count}|ms");
        socket.send_to(packet.as_bytes(), server.addresses()[0].unwrap()).unwrap();
    };
    count(1);
    wait_until("the first interval", RECEIVER_TIMEOUT, || {
        stat(&server, "flush_length") > 0.0 && counted(&server, "hits") == Some(0.0)
    });
    // Killed without a chance to say anything to its clients.
    drop(running);
    for number in [2, 4] {
        count(number);
        wait_until("a spooled interval", RECEIVER_TIMEOUT, || {
            stat(&server, "spool_batches") > 0.0 && counted(&server, "hits") == Some(0.0)
        });
    }
    let _running = broker.start();
    count(8);
    wait_until("an empty spool", RECEIVER_TIMEOUT, || stat(&server, "spool_batches") == 0.0);
    stop(server);
    let messages = broker.messages();
    // Every count has arrived, and the sum of different messages has each once.
    let different = counts(&messages);
    assert_eq!(different.iter().sum::<u64>(), 15, "{different:?}");
    for key in ["hits", "latency", "statsd"] {
        let partitions: BTreeSet<u32> =
            messages.iter().filter(|found| found.key == key).map(|found| found.partition).collect();
        assert_eq!(partitions.len(), 1, "{key}: {messages:?}");
    }
    let partitions: BTreeSet<u32> = messages.iter().map(|found| found.partition).collect();
    assert!(partitions.len() > 1, "{partitions:?}");
}

#[test]
fn kafka_receives_line_protocol_with_tls_and_passwords() {
    let Some(kafka) = KafkaInstallation::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(certificate) = TestCertificate::make(folder.path(), "kafka", "localhost") else {
        return;
    };
    let broker = kafka.prepare(folder.path(), Some(&certificate));
    let _running = broker.start();
    broker.create_topic();
    let password_file = folder.path().join("password");
    let secured = |password: &str, mechanism, spool_bytes| {
        fs::write(&password_file, format!("{password}\n")).unwrap();
        let settings = KafkaSettings {
            brokers: vec![format!("localhost:{}", broker.secure_port)],
            format: KafkaFormat::Influx,
            tls: true,
            ca_file: Some(certificate.certificate.clone()),
            user: Some("joe".to_owned()),
            password_file: Some(password_file.clone()),
            mechanism,
            spool_bytes,
            ..broker.settings()
        };
        let backends = BackendSettings { kafka: vec![settings], ..BackendSettings::default() };
        serve(backends, NO_PERIODIC_FLUSH)
    };
    // Without a spool, the report has the reason.
    let refused = secured("wrong", SaslMechanism::ScramSha512, 0);
    send(&refused);
    let undelivered = refused.stop().undelivered;
    let [(name, why)] = &undelivered[..] else { panic!("{undelivered:?}") };
    assert_eq!(*name, "kafka");
    assert!(why.contains("values dropped: ") && !why.contains("wrong"), "{why}");
    assert!(why.to_lowercase().contains("sasl"), "{why}");
    for mechanism in [SaslMechanism::ScramSha512, SaslMechanism::Plain] {
        let server = secured(PASSWORD, mechanism, 1 << 20);
        send(&server);
        stop(server);
    }
    let messages = broker.messages();
    for (line, key) in [
        ("api.hits,metric_type=counter count=30,rate=", "api.hits"),
        ("api.hits,code=500,metric_type=counter count=2,rate=", "api.hits"),
        ("pool.size,metric_type=gauge value=-2.5 ", "pool.size"),
        ("users,metric_type=set count=2 ", "users"),
    ] {
        let found: Vec<&ReadMessage> =
            messages.iter().filter(|message| message.value.starts_with(line)).collect();
        assert_eq!(found.len(), 2, "{line}: {messages:?}");
        assert_eq!(found[0].key, key);
        let nanoseconds: u64 = found[0].value.rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(nanoseconds / 1_000_000, found[0].time_ms);
    }
}

#[test]
fn missing_topic_is_named() {
    let Some(kafka) = KafkaInstallation::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = kafka.prepare(folder.path(), None);
    let _running = broker.start();
    let kafka = vec![KafkaSettings { spool_bytes: 0, ..broker.settings() }];
    let server = serve(BackendSettings { kafka, ..BackendSettings::default() }, NO_PERIODIC_FLUSH);
    send(&server);
    let why = &server.stop().undelivered[0].1;
    assert!(why.contains("the topic \"howdah\" does not exist"), "{why}");
    // Created later, it gets what was spooled until then.
    let server = broker.serve_every_second();
    send(&server);
    wait_until("a spooled interval", RECEIVER_TIMEOUT, || stat(&server, "spool_batches") > 0.0);
    broker.create_topic();
    stop(server);
    assert!(broker.messages().iter().any(|message| message.value.contains("\"count\":30,")));
}

/// The different counts of `hits` other than 0.
fn counts(messages: &[ReadMessage]) -> BTreeSet<u64> {
    let hits = messages.iter().filter(|message| message.key == "hits");
    let counts = hits.map(|message| {
        let value: serde_json::Value = serde_json::from_str(&message.value).unwrap();
        assert_eq!(value["tags"]["code"], "200");
        value["fields"]["count"].as_f64().unwrap() as u64
    });
    counts.filter(|count| *count > 0).collect()
}

/// A status value of the backend, 0 if there is none.
fn stat(server: &StatsdServer, name: &str) -> f64 {
    let (stats, start) = (management(server, "stats"), format!("kafka.{name}: "));
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0.0, |number| number.parse().unwrap())
}

/// The count of the running interval.
fn counted(server: &StatsdServer, key: &str) -> Option<f64> {
    let counters = management(server, "format json\ncounters");
    let counters: serde_json::Value = serde_json::from_str(counters.lines().last()?).ok()?;
    let counters = counters.as_object()?;
    counters.iter().find(|(name, _)| name.starts_with(key)).and_then(|(_, count)| count.as_f64())
}

fn management(server: &StatsdServer, commands: &str) -> String {
    let mut stream = TcpStream::connect(server.management().unwrap()).unwrap();
    stream.write_all(format!("{commands}\n").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// The jars that `make receivers` has downloaded.
struct KafkaInstallation {
    java: PathBuf,
    class_path: String,
}

/// A broker's settings and ports.
struct KafkaBroker<'i> {
    installation: &'i KafkaInstallation,
    folder: PathBuf,
    port: u16,
    /// The port for TLS and SASL; not open without a certificate.
    secure_port: u16,
}

/// A message as the consumer prints it.
#[derive(Debug)]
struct ReadMessage {
    time_ms: u64,
    partition: u32,
    key: String,
    value: String,
}

impl KafkaInstallation {
    fn find() -> Option<Self> {
        let java = program("java", "install a JRE, version 17 or newer")?;
        let jars = tools_folder().parent().unwrap().join("share/kafka");
        if !jars.is_dir() {
            return report_skipped("Apache Kafka", "run `make receivers`");
        }
        Some(Self { java, class_path: format!("{}/*", jars.display()) })
    }

    fn java(&self, class: &str) -> Command {
        let mut command = Command::new(&self.java);
        command.args(["-Xmx256m", "-cp", &self.class_path, class]);
        command
    }

    /// Creates the settings and the data folder of a broker. With a certificate, it has a second
    /// port with TLS, where a user must have a password.
    fn prepare(&self, folder: &Path, certificate: Option<&TestCertificate>) -> KafkaBroker<'_> {
        let [port, secure_port, controller] = [free_port(), free_port(), free_port()];
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut secure = String::new();
        if let Some(certificate) = certificate {
            listeners += &format!(",SASL_SSL://localhost:{secure_port}");
            let pem = folder.join("broker.pem");
            let files = [&certificate.key, &certificate.certificate];
            fs::write(&pem, files.map(|file| fs::read_to_string(file).unwrap()).concat()).unwrap();
            let modules = "org.apache.kafka.common.security";
            secure = format!(
                "ssl.keystore.type=PEM\nssl.keystore.location={}\n\
                 sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n\
                 listener.name.sasl_ssl.plain.sasl.jaas.config=\
                 {modules}.plain.PlainLoginModule required user_joe=\"{PASSWORD}\";\n\
                 listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
                 {modules}.scram.ScramLoginModule required;\n",
                pem.display()
            );
        }
        let protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL";
        let settings = format!(
            "process.roles=broker,controller\nnode.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners={listeners},CONTROLLER://127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\nlistener.security.protocol.map={protocols}\n\
             log.dirs={}/data\noffsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n\
             auto.create.topics.enable=false\n{secure}",
            folder.display()
        );
        let file = folder.join("server.properties");
        fs::write(&file, settings).unwrap();
        let user = format!("SCRAM-SHA-512=[name=joe,password={PASSWORD}]");
        let output = self
            .java("kafka.tools.StorageTool")
            .args(["format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "--add-scram", &user, "-c"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        KafkaBroker { installation: self, folder: folder.to_owned(), port, secure_port }
    }
}

impl KafkaBroker<'_> {
    fn start(&self) -> ReceiverProcess {
        let mut command = self.installation.java("kafka.Kafka");
        command.arg(self.folder.join("server.properties"));
        let running = ReceiverProcess::start(&mut command, &self.folder.join("output"));
        wait_for_port(self.port);
        running
    }

    fn create_topic(&self) {
        let create = || {
            let mut command = self.installation.java("org.apache.kafka.tools.TopicCommand");
            command.args(["--bootstrap-server", &format!("127.0.0.1:{}", self.port)]);
            command.args(["--create", "--if-not-exists", "--topic", TOPIC, "--partitions", "5"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
        };
        wait_until("the topic to be created", RECEIVER_TIMEOUT, create);
    }

    fn settings(&self) -> KafkaSettings {
        KafkaSettings {
            brokers: vec![format!("127.0.0.1:{}", self.port)],
            topic: TOPIC.to_owned(),
            format: KafkaFormat::Json,
            tls: false,
            ca_file: None,
            user: None,
            password_file: None,
            mechanism: SaslMechanism::default(),
            batch_bytes: 1024,
            spool_bytes: 1 << 20,
        }
    }

    /// Starts a server with a management port that flushes each second to this broker.
    fn serve_every_second(&self) -> StatsdServer {
        let kafka = vec![self.settings()];
        let settings = StatsdSettings {
            listen: vec![ListenSettings::udp(([127, 0, 0, 1], 0).into())],
            management: Some(([127, 0, 0, 1], 0).into()),
            flush_interval: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(60),
            backends: BackendSettings { kafka, ..BackendSettings::default() },
            ..StatsdSettings::default()
        };
        let backends = backends::open(&settings, &Environment::from_process()).unwrap();
        StatsdServer::start(ServerParts { settings, backends, ..ServerParts::default() }).unwrap()
    }

    /// Returns all messages of the topic, as read by Kafka's own consumer. No server must be
    /// sending, because the consumer ends after a pause.
    fn messages(&self) -> Vec<ReadMessage> {
        let mut command = self.installation.java("org.apache.kafka.tools.consumer.ConsoleConsumer");
        command.args(["--bootstrap-server", &format!("127.0.0.1:{}", self.port)]);
        command.args(["--topic", TOPIC, "--from-beginning", "--timeout-ms", "3000"]);
        for property in ["timestamp", "partition", "key"] {
            command.args(["--property", &format!("print.{property}=true")]);
        }
        // It ends with an error, because it waits for more until the timeout.
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(ReadMessage::parse).collect()
    }
}

impl ReadMessage {
    /// Parses `CreateTime:…<TAB>Partition:…<TAB>key<TAB>value`.
    fn parse(line: &str) -> Self {
        let parts: BTreeMap<usize, &str> = line.splitn(4, '\t').enumerate().collect();
        let number = |at: usize, name: &str| parts[&at].strip_prefix(name).unwrap();
        Self {
            time_ms: number(0, "CreateTime:").parse().unwrap(),
            partition: number(1, "Partition:").parse().unwrap(),
            key: parts[&2].to_owned(),
            value: parts[&3].to_owned(),
        }
    }
}
