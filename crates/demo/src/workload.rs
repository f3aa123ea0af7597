//! The traffic of the shop: several clients, each with its own habits and protocol.

use std::{
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, QueryError, Target};

use crate::{
    Error,
    shop::{CUSTOMERS, PLANTED_QUERY, PRODUCTS},
};

/// What one client does again and again.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Buys: a transaction of simple statements, values in their text.
    Buyer,
    /// Looks at a customer's page: a named prepared statement with a bound value.
    Visitor,
    /// Packs orders: the extended protocol, nothing prepared by name.
    Packer,
    /// Draws up figures: reads all orders.
    Reporter,
}

/// Who is in the shop, and how long each pauses between two rounds.
const CLIENTS: &[(Habit, Duration)] = &[
    (Habit::Buyer, Duration::from_millis(40)),
    (Habit::Buyer, Duration::from_millis(55)),
    (Habit::Visitor, Duration::from_millis(35)),
    (Habit::Visitor, Duration::from_millis(45)),
    (Habit::Visitor, Duration::from_millis(60)),
    (Habit::Packer, Duration::from_millis(50)),
    (Habit::Packer, Duration::from_millis(70)),
    (Habit::Reporter, Duration::from_millis(900)),
];

/// Runs all clients for `duration` and says how often they had a statement executed.
///
/// # Errors
///
/// The server went away, or refused a statement that should work.
pub(crate) fn run(target: &Target, duration: Duration) -> Result<u64, Error> {
    let end = Instant::now() + duration;
    thread::scope(|scope| {
        let clients: Vec<_> = (1..)
            .zip(CLIENTS)
            .map(|(seed, (habit, pause))| {
                scope.spawn(move || Shopper::enter(target, *habit, seed)?.stay(*pause, end))
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).sum()
    })
}

struct Shopper {
    client: Client,
    habit: Habit,
    dice: Dice,
    executions: u64,
}

impl Shopper {
    fn enter(target: &Target, habit: Habit, seed: u64) -> Result<Self, Error> {
        let name = format!("{habit:?}").to_lowercase();
        let mut client = Client::connect(&target.with_application_name(&name))?;
        if let Habit::Visitor = habit {
            client.prepare("orders_of_customer", PLANTED_QUERY)?;
        }
        Ok(Self { client, habit, dice: Dice(seed), executions: 0 })
    }

    fn stay(mut self, pause: Duration, end: Instant) -> Result<u64, Error> {
        while Instant::now() < end {
            self.round()?;
            // Pauses vary, or all clients would march in step.
            thread::sleep(pause.mul_f64(0.5 + f64::from(self.dice.roll(1000)) / 1000.0));
        }
        Ok(self.executions)
    }

    fn round(&mut self) -> Result<(), QueryError> {
        let customer = self.dice.roll(CUSTOMERS);
        let product = self.dice.roll(PRODUCTS);
        match self.habit {
            Habit::Buyer => {
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
            Habit::Visitor => {
                self.client.query_prepared("orders_of_customer", &[Some(&customer.to_string())])?;
                self.executions += 1;
                self.simple(&format!("select name, city from customers where id = {customer}"))
            }
            Habit::Packer => {
                let order = self.dice.roll(crate::shop::ORDERS).to_string();
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
            Habit::Reporter => self.simple(
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

/// Numbers that look random and are the same in every demo.
struct Dice(u64);

impl Dice {
    /// A number from 1 to `sides`.
    fn roll(&mut self, sides: u32) -> u32 {
        // Knuth's MMIX constants for a linear congruential generator; the high bits are good enough.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(sides)) as u32 + 1
    }
}
