//! The statements of the catalogue: policies, overrides and the epoch.

use super::database::{Gate, Lock, OverrideRow, PolicyRow, Tables};
use super::history::Terms;
use super::scene;
use super::session::{Session, Sql};
use super::wire::{Kind, Parameters, Rows, Value};

const POLICY_COLUMNS: [&str; 5] = ["name", "version", "document", "created_by", "created_at"];
const OVERRIDE_COLUMNS: [&str; 7] =
    ["policy", "limit_name", "key_values", "subject", "max", "created_by", "created_at"];

impl Session {
    pub(super) async fn catalogue(&mut self, sql: &str, parameters: Parameters) -> Sql<Rows> {
        let begins = |start: &str| sql.starts_with(start);
        let snapshot = self.transaction.as_ref().and_then(|open| open.snapshot.as_deref());
        let tables = match snapshot {
            Some(snapshot) => snapshot.clone(),
            None => self.database.state().tables.clone(),
        };
        if begins("select epoch, swept_at,") {
            let Gate { epoch, swept_at } = tables.gate;
            let clock = self.database.clock();
            Ok(Rows::one(vec![
                ("epoch", Value::Int(epoch)),
                ("swept_at", Value::Int(swept_at)),
                ("clock", Value::Int(clock)),
            ]))
        } else if begins("select distinct on (name)") {
            Ok(newest_policies(&tables, None))
        } else if begins("select policy, limit_name,") {
            Ok(overrides(&tables))
        } else if begins("select hash, name, scope") {
            Ok(Rows::none())
        } else if begins("select value from") {
            Ok(Rows::one(vec![("value", Value::Bytes(tables.secret))]))
        } else {
            self.change(sql, parameters, &tables).await
        }
    }

    async fn change(
        &mut self,
        sql: &str,
        mut parameters: Parameters,
        tables: &Tables,
    ) -> Sql<Rows> {
        let begins = |start: &str| sql.starts_with(start);
        let open = self.transaction.as_mut().expect("the store begins a transaction first");
        if begins("select name, version, document") {
            return Ok(newest_policies(tables, Some(&parameters.text())));
        } else if begins("insert into \"tollgate\".policy_version") {
            let id = (parameters.text(), parameters.int());
            let row = PolicyRow {
                document: parameters.optional_text(),
                created_by: parameters.text(),
                created_at: parameters.int(),
            };
            open.policies.push((id, row));
        } else if begins("insert into \"tollgate\".override") {
            let id = (parameters.text(), parameters.text(), parameters.bytes());
            let row = OverrideRow {
                subject: parameters.text(),
                max: parameters.int(),
                created_by: parameters.text(),
                created_at: parameters.int(),
            };
            open.overrides.push((id, Some(row)));
        } else if begins("delete from \"tollgate\".override") {
            let id = (parameters.text(), parameters.text(), parameters.bytes());
            if tables.overrides.contains_key(&id) {
                open.overrides.push((id, None));
                return Ok(Rows::one(vec![("removed", Value::Int(1))]));
            }
        } else if begins("update \"tollgate\".gate set epoch = epoch + 1") {
            self.lock(Lock::Gate).await?;
            let gate = self.database.state().tables.gate;
            let open = self.transaction.as_mut().expect("it was open a moment ago");
            open.gate = Some(Gate { epoch: gate.epoch + 1, ..gate });
        } else {
            return Err(self.unknown(sql));
        }
        Ok(Rows::none())
    }
}

fn newest_policies(tables: &Tables, of: Option<&str>) -> Rows {
    let mut rows: Vec<Vec<Value>> = Vec::new();
    let mut last = None;
    for ((name, version), policy) in tables.policies.iter().rev() {
        if of.is_some_and(|of| of != name) || last == Some(name) {
            continue;
        }
        last = Some(name);
        rows.push(vec![
            Value::Text(name.clone()),
            Value::Int(*version),
            policy.document.clone().map_or(Value::Null(Kind::Text), Value::Text),
            Value::Text(policy.created_by.clone()),
            Value::Int(policy.created_at),
        ]);
    }
    rows.reverse();
    Rows { columns: POLICY_COLUMNS.to_vec(), rows }
}

fn overrides(tables: &Tables) -> Rows {
    let rows = tables.overrides.iter().map(|((policy, limit, values), row)| {
        vec![
            Value::Text(policy.clone()),
            Value::Text(limit.clone()),
            Value::Bytes(values.clone()),
            Value::Text(row.subject.clone()),
            Value::Int(row.max),
            Value::Text(row.created_by.clone()),
            Value::Int(row.created_at),
        ]
    });
    Rows { columns: OVERRIDE_COLUMNS.to_vec(), rows: rows.collect() }
}

impl Terms {
    /// What the catalogue says is in force.
    pub(super) fn read(tables: &Tables) -> Self {
        let mut policies: Vec<(u64, Vec<u64>)> = Vec::new();
        for ((name, version), row) in &tables.policies {
            let number = scene::number(name);
            policies.resize(policies.len().max(number + 1), (0, Vec::new()));
            let document = row.document.as_deref().expect("no policy is deleted here");
            let document: serde_json::Value =
                serde_json::from_str(document).expect("a stored document is JSON");
            let limits = document["limits"].as_array().expect("a policy has limits");
            let maxima = limits.iter().map(|limit| limit["max"].as_u64().expect("it has a max"));
            policies[number] = (version.cast_unsigned(), maxima.collect());
        }
        let overrides = tables.overrides.iter().map(|((policy, limit, _), row)| {
            let subject: serde_json::Value =
                serde_json::from_str(&row.subject).expect("a stored subject is JSON");
            let user = scene::number(subject["user"].as_str().expect("limits count by user"));
            (scene::number(policy), scene::number(limit), user, row.max.cast_unsigned())
        });
        Self { epoch: tables.gate.epoch, policies, overrides: overrides.collect() }
    }
}
