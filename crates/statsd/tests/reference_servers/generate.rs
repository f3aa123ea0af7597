//! Generates valid and invalid packets that both servers interpret in the same way.

/// A generator of packets, deterministic for a seed.
pub(crate) struct PacketGenerator {
    state: u64,
}

/// Rates whose inverse is a whole number.
const WHOLE_RATES: [&str; 6] = ["", "", "|@0.5", "|@0.25", "|@0.1", "|@1"];

/// The only rate of a timer.
fn rate_of(timer: u64) -> &'static str {
    WHOLE_RATES[timer as usize % WHOLE_RATES.len()]
}

impl PacketGenerator {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// One to five lines, some of them empty.
    pub(crate) fn packet(&mut self) -> Vec<u8> {
        let lines: Vec<String> = (0..=self.random_below(4)).map(|_| self.line()).collect();
        lines.join("\n").into_bytes()
    }

    /// A line that statsd_exporter and this server interpret in the same way. A name has one type,
    /// because the exporter drops values of another one.
    pub(crate) fn exporter_line(&mut self) -> String {
        let number = self.random_below(30);
        let tags = self.pick(&["", "", "|#env:prod", "|#code:200,path:a-b", "|#zone:é x"]);
        let tenths = self.random_below(5000) as f64 / 10.0;
        match self.random_below(12) {
            0 => format!("gauge.{number}:{}{tenths}|g{tags}", self.pick(&["", "", "+", "-"])),
            1 => format!("timer/{number}:{tenths}|ms{}{tags}", self.whole_rate()),
            2 => format!("size.{number}:{tenths}:1:2.5|h{}{tags}", self.whole_rate()),
            3 => format!("9share.{number}:{tenths}|d{}{tags}", self.whole_rate()),
            4 => format!("count.{number}:1|c:{tenths}|c:2|c{}", self.whole_rate()),
            5 => self.pick(&["", "count.1", "count.1:", "count.1:1", "count.1:x|c", ":1|c"]).into(),
            6 => format!("count.{number},env=prod:3|c"),
            _ => format!("count-é.{number}:{tenths}|c{}{tags}", self.whole_rate()),
        }
    }

    /// A line that gostatsd and this server interpret in the same way. Counters are whole numbers,
    /// and each gauge has one value: those in one batch have no order there.
    pub(crate) fn gostatsd_line(&mut self, number: usize) -> String {
        let key = self.random_below(25);
        let tags = self.pick(&["", "", "|#env:prod", "|#zone:b,code:200"]);
        let tenths = self.random_below(50_000) as f64 / 10.0;
        match self.random_below(8) {
            0 => format!("gauge.{number}:{tenths}|g{tags}"),
            1 | 2 => format!("timer/{key}:{tenths}|ms{}{tags}", self.whole_rate()),
            3 => format!("size.{key}:{tenths}|h{tags}"),
            4 => format!("users.{key}:{}|s{tags}", self.pick(&["ann", "bob", "cy", "di"])),
            5 => self.pick(&["", "count.1", "count.1:1", "count.1:x|c"]).to_owned(),
            _ => format!("co unt.{key}:{}|c{}{tags}", tenths.floor(), self.whole_rate()),
        }
    }

    /// A line of DogStatsD's protocol, and sometimes one with a mistake. `now` is the latest time,
    /// in seconds since 1970.
    pub(crate) fn dogstatsd_line(&mut self, now: u64) -> String {
        match self.random_below(20) {
            0 => self.dogstatsd_event(now),
            1 => self.dogstatsd_check(now),
            2 => self
                .pick(&[
                    "",
                    "a",
                    "a:",
                    "a:1",
                    ":1|c",
                    "a:x|c",
                    "a|c",
                    "a:1|c|@x",
                    "_e{1,1}:a",
                    "a:1|c|@-1",
                    "a:1|c|T",
                    "a:1|c|T0",
                    "a:1:x:2|c",
                    "a:1::2|h",
                    "a:nan|g",
                    "_e{0,1}:|a",
                    "_e{2,1}:a|b",
                    "_sc|a",
                    "_sc|a|4",
                    "_sc||0",
                    "_e{1,1}:a|bc",
                ])
                .to_owned(),
            _ => self.dogstatsd_metric(now),
        }
    }

    fn dogstatsd_metric(&mut self, now: u64) -> String {
        let number = self.random_below(15);
        let kind = self.pick(&["c", "c", "g", "ms", "h", "d", "s"]);
        let mut fields = Vec::new();
        // Tags of gauges are written in one way, and a timer has one rate, because others are
        // intended differences.
        let tags = match kind {
            "g" => self.pick(&["", "", "#env:prod", "#a.b,env:x-y/z:1"]),
            _ => self.pick(&[
                "",
                "#env:prod",
                "#b:2,a:1,c",
                "#a:1,c,b:2",
                "#c,a:1,c,b:2",
                "#url:http://x",
            ]),
        };
        fields.push(tags.to_owned());
        let is_timed = matches!(kind, "c" | "g") && self.random_below(5) == 0;
        if is_timed {
            fields.push(format!("T{}", now - self.random_below(4) * 300));
        } else {
            let rate = match kind {
                "ms" | "h" | "d" => rate_of(number),
                _ => self.pick(&["", "", "|@0.5", "|@0.25", "|@1", "|@1e-1", "|@.2"]),
            };
            fields.push(rate.trim_start_matches('|').to_owned());
        }
        let containers = match kind {
            "g" => &["c:ci-83c0a9", "c:in-4026531835"][..],
            _ => &["c:83c0a9", "c:ci-83c0a9", "c:in-4026531835", "c:ci-83c0a9,in-7", "c:in-7,ci-9"],
        };
        if self.random_below(3) == 0 {
            fields.push(self.pick(containers).to_owned());
        }
        fields.push(self.pick(&["", "", "", "e:it-false,cn-nginx,pu-75a2b6d5"]).to_owned());
        fields.push(self.pick(&["", "", "card:low", "card:orchestrator", "card:none"]).to_owned());
        fields.push(self.pick(&["", "", "", "z", "x:later", "0.5"]).to_owned());
        fields.retain(|field| !field.is_empty());
        // Fields may come in any order.
        for at in (1..fields.len()).rev() {
            fields.swap(at, self.random_below(at as u64 + 1) as usize);
        }
        let value = if kind == "s" {
            self.pick(&["ann", "bob", "7", "fe80::1", "a b", "ünï", "1:2"]).to_owned()
        } else {
            let count = self.random_below(8).saturating_sub(4).max(1);
            let values: Vec<String> = (0..count).map(|_| self.dogstatsd_number(kind)).collect();
            values.join(":")
        };
        let fields: String = fields.iter().map(|field| format!("|{field}")).collect();
        format!("{}.name_{number}:{value}|{kind}{fields}", kind.to_uppercase())
    }

    fn dogstatsd_number(&mut self, kind: &str) -> String {
        let sign = if kind == "ms" { "" } else { self.pick(&["", "", "", "-", "+"]) };
        let exponent = self.pick(&["", "", "", "", "", "e2", "E-3", "e+1"]);
        let tenths = self.random_below(100_000);
        match self.random_below(4) {
            0 => format!("{sign}{tenths}{exponent}"),
            1 => format!("{sign}{}.{}{exponent}", tenths / 10, tenths % 10),
            2 => format!("{sign}.{tenths}"),
            _ => format!("{sign}{}", tenths % 10),
        }
    }

    fn dogstatsd_event(&mut self, now: u64) -> String {
        let title = self.pick(&["Deploy", "Größe", "a|b", "two\\nlines", "}:,{", "_sc|x|0"]);
        let text = self.pick(&["", "all servers", "first\\nsecond", "x|y|#z:1", "é", "p:low"]);
        let options = [
            self.pick(&["", "p:low", "p:normal", "p:high"]).to_owned(),
            self.pick(&["", "t:info", "t:success", "t:warning", "t:error", "t:bad"]).to_owned(),
            self.pick(&["", "", "k:deploys"]).to_owned(),
            self.pick(&["", "", "s:shop"]).to_owned(),
        ];
        let options = self.message_options(now, options.into());
        format!("_e{{{},{}}}:{title}|{text}{options}", title.len(), text.len())
    }

    fn dogstatsd_check(&mut self, now: u64) -> String {
        let name = self.pick(&["db.up", "Redis connection", "a:b"]);
        let status = self.random_below(4);
        let options = self.message_options(now, Vec::new());
        let message = self.pick(&["", "|m:timed out after 10s", "|m:a: b"]);
        format!("_sc|{name}|{status}{options}{message}")
    }

    /// Optional fields of events and service checks, in any order.
    fn message_options(&mut self, now: u64, mut options: Vec<String>) -> String {
        if self.random_below(2) == 0 {
            options.push(format!("d:{}", now - self.random_below(1000)));
        }
        options.push(self.pick(&["", "h:web1", "h:web-2.example.org"]).to_owned());
        options.push(self.pick(&["", "#env:prod", "#b:2,a:1,url:http://x"]).to_owned());
        options.push(self.pick(&["", "", "c:ci-83c0a9", "c:83c0a9"]).to_owned());
        options
            .push(self.pick(&["", "", "e:it-false,cn-nginx", "card:none", "z:later"]).to_owned());
        options.retain(|option| !option.is_empty());
        for at in (1..options.len()).rev() {
            options.swap(at, self.random_below(at as u64 + 1) as usize);
        }
        options.iter().map(|option| format!("|{option}")).collect()
    }

    /// Nothing, or a rate whose inverse is a whole number.
    fn whole_rate(&mut self) -> &'static str {
        self.pick(&WHOLE_RATES)
    }

    fn line(&mut self) -> String {
        match self.random_below(40) {
            0 => String::new(),
            1 => self.key(),
            2 => format!("{}:", self.key()),
            3 => format!("{}:{}", self.key(), self.number()),
            _ => self.metric(),
        }
    }

    fn metric(&mut self) -> String {
        let values: Vec<String> =
            (0..=self.random_below(12).saturating_sub(9)).map(|_| self.value()).collect();
        let tags = match self.random_below(6) {
            0 => self.pick(&["|#env:prod", "|#a:b,c", "|#z:9;x:y:z,#", "|#", "|#a b:c/d,ä:ö"]),
            _ => "",
        };
        format!("{}:{}{tags}", self.key(), values.join(":"))
    }

    /// `value|type`, sometimes with a rate.
    fn value(&mut self) -> String {
        let kind =
            self.pick(&["c", "c", "ms", "ms", "ms", "g", "g", "s", "", "x", "c ", "g\r", "ms2"]);
        let value = match kind {
            "s" => self.pick(&["ann", "bob", "", "0", "x y", "ünï", "7"]).to_owned(),
            "g" if self.random_below(3) == 0 => {
                format!("{}{}", self.pick(&["+", "-"]), self.positive())
            }
            "ms" if self.random_below(10) > 0 => self.positive(),
            _ => self.number(),
        };
        let rate = match (kind, self.random_below(8)) {
            // Etsy's server treats a rate after white space differently.
            ("c" | "ms" | "g" | "s", 0 | 1) => self
                .pick(&["|@0.1", "|@0.5", "|@1", "|@.25", "|@2", "|@", "|@x", "|@-1", "|0.1", "|"]),
            ("c", 2) => "|@0.5|whatever",
            _ => "",
        };
        format!("{value}|{kind}{rate}")
    }

    fn number(&mut self) -> String {
        match self.random_below(12) {
            0 => format!("-{}", self.positive()),
            1 => self
                .pick(&["", "x", "1_0", "0,5", "-", "1e", "nan", "++1", "0x", "1.2.3"])
                .to_owned(),
            2 => self
                .pick(&["0x1F", "1e3", " 5 ", ".5", "5.", "007", "1E-2", "0b11", "+0"])
                .to_owned(),
            _ => self.positive(),
        }
    }

    fn positive(&mut self) -> String {
        match self.random_below(4) {
            0 => self.random_below(1_000_000).to_string(),
            1 => format!("{}.{:03}", self.random_below(1000), self.random_below(1000)),
            2 => (self.next() as f64 / u64::MAX as f64 * 100.0).to_string(),
            _ => self.random_below(20).to_string(),
        }
    }

    fn key(&mut self) -> String {
        match self.random_below(12) {
            0 => self
                .pick(&[
                    "a b",
                    "a/b",
                    "a  b",
                    "ä.key",
                    "x(y)",
                    "tab\tkey",
                    "q;t=1",
                    "17",
                    "my_bad_lines_seen",
                ])
                .to_owned(),
            _ => format!("k{}.v", self.random_below(25)),
        }
    }

    fn pick(&mut self, of: &[&'static str]) -> &'static str {
        of[self.random_below(of.len() as u64) as usize]
    }

    fn random_below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Source: Steele, Lea, Flood: SplitMix, 2014.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
