//! The workload: several clients, each with its own statements and protocol.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget, QueryError};

use crate::{
    dataset::{CUSTOMERS, ORDERS, PLANTED_QUERY, PRODUCTS},
    error::DemoError,
};

/// The statements that a client repeats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkloadKind {
    /// Buys products, in a transaction of simple statements with the values in their text.
    Buyer,
    /// Reads a customer's orders, with a named prepared statement and a bound value.
    Visitor,
    /// Reads a customer's name and city, with a simple statement.
    Greeter,
    /// Packs orders, with unnamed statements of the extended protocol.
    Packer,
    /// Computes a report, for which the server reads all orders.
    Reporter,
}

/// The clients, with the mean pause of each between two rounds. Visitors are rare enough that the
/// server without the index, which reads all orders for each, is not overloaded.
pub(crate) const CLIENTS: &[(WorkloadKind, Duration)] = &[
    (WorkloadKind::Buyer, Duration::from_millis(50)),
    (WorkloadKind::Buyer, Duration::from_millis(65)),
    (WorkloadKind::Visitor, Duration::from_millis(90)),
    (WorkloadKind::Visitor, Duration::from_millis(110)),
    (WorkloadKind::Greeter, Duration::from_millis(40)),
    (WorkloadKind::Packer, Duration::from_millis(50)),
    (WorkloadKind::Packer, Duration::from_millis(70)),
    (WorkloadKind::Reporter, Duration::from_millis(700)),
];

/// Runs all clients for `duration`, or until `stop` is set, and returns the number of statements
/// they executed.
///
/// # Errors
///
/// A connection or a statement failed.
pub(crate) fn run(
    target: &ConnectTarget,
    duration: Duration,
    stop: &AtomicBool,
) -> Result<u64, DemoError> {
    let end = Instant::now() + duration;
    thread::scope(|scope| {
        let clients: Vec<_> = (1..)
            .zip(CLIENTS)
            .map(|(seed, (kind, pause))| {
                scope.spawn(move || {
                    WorkloadClient::connect(target, *kind, seed)?.run_until(*pause, end, stop)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("workload client panicked")).sum()
    })
}

struct WorkloadClient {
    client: Client,
    kind: WorkloadKind,
    random: Lcg,
    executions: u64,
}

impl WorkloadClient {
    fn connect(target: &ConnectTarget, kind: WorkloadKind, seed: u64) -> Result<Self, DemoError> {
        let name = format!("{kind:?}").to_lowercase();
        let mut client = Client::connect(&target.with_application_name(&name))?;
        if let WorkloadKind::Visitor = kind {
            client.prepare("orders_of_customer", PLANTED_QUERY)?;
        }
        Ok(Self { client, kind, random: Lcg(seed), executions: 0 })
    }

    fn run_until(
        mut self,
        pause: Duration,
        end: Instant,
        stop: &AtomicBool,
    ) -> Result<u64, DemoError> {
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            self.run_round()?;
            // Random pauses keep the clients from running in step.
            thread::sleep(pause.mul_f64(0.5 + f64::from(self.random.pick(1000)) / 1000.0));
        }
        Ok(self.executions)
    }

    fn run_round(&mut self) -> Result<(), QueryError> {
        let customer = self.random.pick(CUSTOMERS);
        let product = self.random.pick(PRODUCTS);
        match self.kind {
            WorkloadKind::Buyer => {
                self.simple("begin")?;
                self.simple(&format!("select price, stock from products where id = {product}"))?;
                self.simple(&format!(
                    "insert into orders (customer_id, product_id, total, note) \
                     values ({customer}, {product}, {product}.50, 'bought by customer {customer}')"
                ))?;
                self.simple(&format!(
                    "update products set stock = stock - 1 where id = {product}"
                ))?;
                self.simple("commit")
            }
            WorkloadKind::Visitor => {
                self.client.query_prepared("orders_of_customer", &[Some(&customer.to_string())])?;
                self.executions += 1;
                Ok(())
            }
            WorkloadKind::Greeter => {
                self.simple(&format!("select name, city from customers where id = {customer}"))
            }
            WorkloadKind::Packer => {
                let order = self.random.pick(ORDERS).to_string();
                self.extended(
                    "select o.id, c.name, p.name from orders o \
                     join customers c on c.id = o.customer_id \
                     join products p on p.id = o.product_id where o.id = $1",
                    &[Some(&order)],
                )?;
                self.extended(
                    "update orders set status = $2 where id = $1",
                    &[Some(&order), Some("sent")],
                )
            }
            WorkloadKind::Reporter => self.simple(
                "select status, count(*), sum(total) from orders group by status order by status",
            ),
        }
    }

    fn simple(&mut self, sql: &str) -> Result<(), QueryError> {
        self.client.query(sql)?;
        self.executions += 1;
        Ok(())
    }

    fn extended(&mut self, sql: &str, values: &[Option<&str>]) -> Result<(), QueryError> {
        self.client.query_with(sql, values)?;
        self.executions += 1;
        Ok(())
    }
}

/// A linear congruential generator, which yields the same numbers in every demo.
struct Lcg(u64);

impl Lcg {
    /// Returns a number from 1 to `max`.
    fn pick(&mut self, max: u32) -> u32 {
        // Knuth's MMIX constants. The low bits of such a generator are poor, so they are dropped.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(max)) as u32 + 1
    }
}
