//! Who is counted, together with whom, and against which maximum.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate::{Clock, Error};

use crate::random;
use crate::stage::{Stage, used};

const SECOND: i64 = 1_000_000;

pub async fn a_missing_attribute_is_named_and_nothing_is_spent(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "all",  max = 5, per = "60s" },
                { name = "user", max = 5, per = "60s", by = ["user", "route"] },
            ]"#,
        )
        .await;
    for (subject, missing) in
        [(vec![("user", "ada")], "route"), (vec![("route", "/x")], "user"), (vec![], "user")]
    {
        match stage.gate.check(&trial.name, &subject, 1).await {
            Err(Error::BadSubject(bad)) => assert_eq!(bad.field, format!("subject.{missing}")),
            other => panic!("{subject:?} lacks {missing}, and yet: {other:?}"),
        }
    }
    assert_eq!(trial.used(&[("user", "ada"), ("route", "/x")]).await, [0, 0]);
}

pub async fn an_unknown_policy_is_an_error(stage: Stage) {
    let name = random::name("nobody");
    let unknown = |error: Error| matches!(error, Error::NoSuchPolicy(asked) if asked == name);
    let gate = &stage.gate;
    assert!(unknown(gate.check(&name, &[], 1).await.expect_err("no such policy")));
    assert!(unknown(gate.peek(&name, &[], 1).await.expect_err("no such policy")));
    assert!(unknown(gate.policy(&name).expect_err("no such policy")));
    assert!(unknown(gate.policy_versions(&name).await.expect_err("no such policy")));
    assert!(unknown(gate.delete_policy(&name, "me").await.expect_err("no such policy")));
}

pub async fn subjects_are_counted_apart(stage: Stage) {
    let limit = r#"limits = [{ name = "user", max = 2, per = "60s", by = ["user"] }]"#;
    let (one, other) = (stage.trial(limit).await, stage.trial(limit).await);
    for user in ["ada", "bob", "Ada", " ada", "ada\0", "ada\u{301}"] {
        one.pass_times(&[("user", user)], 2).await;
        one.refused_until(&[("user", user)], 1).await;
        assert_eq!(other.used(&[("user", user)]).await, [0], "policies are counted apart");
        // Attributes that no limit counts by change nothing.
        one.refused_until(&[("user", user), ("ip", "203.0.113.7")], 1).await;
    }
}

pub async fn values_do_not_run_into_each_other(stage: Stage) {
    for private in [false, true] {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "pair", max = 1, per = "60s", by = ["a", "b"], private = {private} }}]"#
            ))
            .await;
        for (a, b) in [("xy", "z"), ("x", "yz"), ("x\0", "yz"), ("x", "\0yz"), ("z", "xy")] {
            trial.pass(&[("a", a), ("b", b)], 1).await;
            trial.refused_until(&[("b", b), ("a", a)], 1).await;
        }
    }
}

/// Also where a request's keys outgrow whatever room a store keeps for most of them.
pub async fn long_values_are_counted_apart(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "a",    max = 1, per = "60s", by = ["a"] },
                { name = "b",    max = 1, per = "60s", by = ["b"], private = true },
                { name = "both", max = 1, per = "60s", by = ["a", "b"] },
                { name = "all",  max = 9999, per = "60s" },
            ]"#,
        )
        .await;
    let mut passed = 0;
    for length in (1..=300).step_by(7).chain([1023, 1024]) {
        for last in ["x", "y"] {
            let value = "x".repeat(length - 1) + last;
            let subject = [("a", value.as_str()), ("b", value.as_str())];
            let answer = trial.check(&subject, 1).await;
            passed += 1;
            assert_eq!(used(&answer), [1, 1, 1, passed], "{length} bytes long");
            let receipt = answer.receipt.expect("nobody was there before");
            trial.refused_until(&subject, 1).await;
            let refunded = stage.gate.refund(&receipt).await.expect("the store answers");
            assert_eq!(refunded, tollgate::Refunded::Done);
            trial.pass(&subject, 1).await;
        }
    }
}

/// As many and as long as a subject may have, and such that nothing makes them shorter.
pub async fn the_longest_values_of_all_are_counted_apart(stage: Stage) {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for by in [2, 3, names.len()] {
        let names = &names[..by];
        let trial = stage
            .trial(&format!(
                "limits = [{{ name = \"all\", max = 1, per = \"60s\", by = {names:?} }}]"
            ))
            .await;
        let noise =
            |_: &&str| -> String { (0..64).map(|_| random::name("")[1..].to_owned()).collect() };
        let mut values: Vec<String> = names.iter().map(noise).collect();
        for end in ['x', 'y', 'z'] {
            let last = values.last_mut().expect("there are several");
            last.pop();
            last.push(end);
            let subject: Vec<_> =
                names.iter().zip(&values).map(|(name, value)| (*name, value.as_str())).collect();
            let receipt = trial.pass(&subject, 1).await;
            trial.refused_until(&subject, 1).await;
            let refunded = stage.gate.refund(&receipt).await.expect("the store answers");
            assert_eq!(refunded, tollgate::Refunded::Done);
            trial.pass(&subject, 1).await;
            stage
                .gate
                .put_override(&trial.name, "all", &subject, 2, "test")
                .await
                .expect("it fits");
            trial.pass(&subject, 1).await;
        }
    }
}

pub async fn an_ipv6_network_of_64_bits_is_one_subject(stage: Stage) {
    for private in [false, true] {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "ip", max = 3, per = "60s", by = ["ip"], private = {private} }}]"#
            ))
            .await;
        trial.pass(&[("ip", "2001:db8:1:2::1")], 1).await;
        trial.pass(&[("ip", "2001:DB8:1:2:ffff:ffff:ffff:ffff")], 1).await;
        trial.pass(&[("ip", "2001:0db8:0001:0002:0:0:0:9")], 1).await;
        trial.refused_until(&[("ip", "2001:db8:1:2::2")], 1).await;
        assert_eq!(trial.used(&[("ip", "2001:db8:1:3::1")]).await, [0], "the next network");
        trial.pass(&[("ip", "203.0.113.7")], 1).await;
        trial.pass(&[("ip", "::ffff:203.0.113.7")], 1).await;
        assert_eq!(trial.used(&[("ip", "203.0.113.7")]).await, [2]);
        assert_eq!(trial.used(&[("ip", "203.0.113.8")]).await, [0]);
    }
    let wide = stage
        .trial(r#"limits = [{ name = "ip", max = 3, per = "60s", by = ["ip"], ipv6_prefix = 48 }]"#)
        .await;
    wide.pass(&[("ip", "2001:db8:1:2::1")], 1).await;
    assert_eq!(wide.used(&[("ip", "2001:db8:1:ffff::1")]).await, [1]);
}

pub async fn an_email_is_one_subject_however_it_is_written(stage: Stage) {
    for private in [false, true] {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "email", max = 3, per = "1h", by = ["email"], private = {private} }}]"#
            ))
            .await;
        for email in ["ada@example.com", " Ada@Example.COM", "ADA@EXAMPLE.COM "] {
            trial.pass(&[("email", email)], 1).await;
        }
        trial.refused_until(&[("email", "ada@example.com")], 1).await;
        assert_eq!(trial.used(&[("email", "bob@example.com")]).await, [0]);
    }
}

pub async fn max_by_gives_each_role_its_own_and_others_the_default(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "user", max = 2, per = "60s", by = ["user"], max_by = { role = { free = 1, pro = 4, none = 0 } } }]"#,
        )
        .await;
    for (user, role, max) in
        [("f", Some("free"), 1), ("p", Some("pro"), 4), ("g", Some("guest"), 2), ("n", None, 2)]
    {
        let mut subject = vec![("user", user)];
        subject.extend(role.map(|role| ("role", role)));
        assert_eq!(trial.peek(&subject, 1).await.decision.limits[0].standing.max, max);
        trial.pass_times(&subject, max as u32).await;
        trial.refused_until(&subject, 1).await;
    }
    assert!(!trial.check(&[("user", "x"), ("role", "none")], 1).await.allowed());
    // The role is no part of the key: an upgrade keeps the counts.
    let upgraded = trial.check(&[("user", "f"), ("role", "pro")], 1).await;
    assert!(upgraded.allowed());
    assert_eq!(used(&upgraded), [2]);
}

pub async fn an_override_takes_effect_at_once_and_so_does_its_end(stage: Stage) {
    for algorithm in ["fixed", "sliding", "bucket"] {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "user", max = 2, per = "60s", algorithm = "{algorithm}", by = ["user"], max_by = {{ role = {{ pro = 3 }} }} }}]"#
            ))
            .await;
        let (gate, name) = (&stage.gate, trial.name.as_str());
        let ada = [("user", "ada"), ("role", "pro")];
        let key = [("user", "ada")];
        trial.pass_times(&ada, 3).await;
        trial.refused_until(&ada, 1).await;
        gate.put_override(name, "user", &key, 5, "me").await.expect("an override is taken");
        assert_eq!(trial.peek(&ada, 1).await.decision.limits[0].standing.max, 5);
        // A full bucket holds a minute of debt, which fills the larger one too: it only drains
        // faster, a fifth of a minute for each.
        let fits = if algorithm == "bucket" { SECOND * 12 } else { 0 };
        stage.wait_until(stage.clock.now().plus_micros(fits));
        trial.pass(&ada, 1).await;
        gate.put_override(name, "user", &key, 0, "me").await.expect("it is replaced");
        assert!(!trial.check(&ada, 1).await.allowed(), "{algorithm}");
        assert!(gate.delete_override(name, "user", &key).await.expect("it is removed"));
        assert!(!gate.delete_override(name, "user", &key).await.expect("there is none left"));
        assert_eq!(trial.peek(&ada, 1).await.decision.limits[0].standing.max, 3);
    }
}

pub async fn an_override_reaches_one_subject_of_one_limit(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "user", max = 1, per = "60s", by = ["user"] },
                { name = "ip",   max = 9, per = "60s", by = ["ip"], private = true },
            ]"#,
        )
        .await;
    let (gate, name) = (&stage.gate, trial.name.as_str());
    gate.put_override(name, "user", &[("user", "ada")], 3, "me").await.expect("taken");
    // Written otherwise, the same network.
    gate.put_override(name, "ip", &[("ip", "2001:db8::1")], 4, "me").await.expect("taken");
    let max = async |user: &str, ip: &str| -> Vec<u64> {
        let answer = trial.peek(&[("user", user), ("ip", ip)], 1).await;
        answer.decision.limits.iter().map(|report| report.standing.max).collect()
    };
    assert_eq!(max("ada", "2001:DB8::2").await, [3, 4]);
    assert_eq!(max("bob", "2001:db8::2").await, [1, 4]);
    assert_eq!(max("ada", "2001:db9::1").await, [3, 9]);
    // A new version of the policy keeps them.
    trial
        .apply(
            r#"limits = [
                { name = "user", max = 2, per = "60s", by = ["user"] },
                { name = "ip",   max = 9, per = "60s", by = ["ip"], private = true },
            ]"#,
        )
        .await;
    assert_eq!(max("ada", "2001:db8::2").await, [3, 4]);
    assert_eq!(max("bob", "2001:db9::2").await, [2, 9]);
}

pub async fn an_override_that_cannot_be_is_refused(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [
                { name = "all",  max = 9, per = "60s" },
                { name = "user", max = 1, per = "60s", by = ["user"] },
            ]"#,
        )
        .await;
    let (gate, name) = (&stage.gate, trial.name.as_str());
    let ada = [("user", "ada")];
    let put = async |limit, subject: &[(&str, &str)], max| {
        gate.put_override(name, limit, subject, max, "me").await.expect_err("it cannot be")
    };
    assert!(matches!(put("nobody", &ada, 1).await, Error::NoSuchLimit { .. }));
    assert!(matches!(put("all", &[], 1).await, Error::BadOverride(_)));
    assert!(matches!(put("user", &[], 1).await, Error::BadSubject(_)));
    assert!(matches!(put("user", &ada, u64::MAX).await, Error::BadOverride(_)));
    let both = [("user", "ada"), ("ip", "203.0.113.7")];
    assert!(matches!(put("user", &both, 1).await, Error::BadOverride(_)));
    let nobody = random::name("nobody");
    let put = gate.put_override(&nobody, "user", &ada, 1, "me").await;
    assert!(matches!(put, Err(Error::NoSuchPolicy(_))));
    assert!(!gate.overrides().iter().any(|kept| kept.policy == name));
}

pub async fn private_values_are_not_in_receipts(stage: Stage) {
    let shows = async |private: bool| -> bool {
        let trial = stage
            .trial(&format!(
                r#"limits = [{{ name = "email", max = 3, per = "1h", by = ["email"], private = {private} }}]"#
            ))
            .await;
        let receipt = trial.pass(&[("email", "ada.lovelace@example.com")], 1).await;
        let bytes = URL_SAFE_NO_PAD.decode(&receipt).expect("a receipt is base64url");
        bytes.windows(12).any(|window| window == b"ada.lovelace")
    };
    assert!(shows(false).await, "a value that is not private can be seen: the search works");
    assert!(!shows(true).await);
}

pub async fn private_values_are_not_in_overrides(stage: Stage) {
    let trial = stage
        .trial(
            r#"limits = [{ name = "email", max = 3, per = "1h", by = ["email"], private = true }]"#,
        )
        .await;
    let email = [("email", "ada.lovelace@example.com")];
    let name = trial.name.as_str();
    stage.gate.put_override(name, "email", &email, 7, "me").await.expect("taken");
    let kept: Vec<_> =
        stage.gate.overrides().into_iter().filter(|kept| kept.policy == name).collect();
    assert_eq!(kept.len(), 1);
    assert!(!format!("{kept:?}").contains("lovelace"));
    assert!(!kept[0].values.windows(8).any(|window| window == b"lovelace"));
    assert_eq!(trial.peek(&email, 1).await.decision.limits[0].standing.max, 7);
}

pub async fn an_override_does_not_reach_another_attribute_of_the_same_value(stage: Stage) {
    let limit =
        |by: &str| format!(r#"limits = [{{ name = "who", max = 2, per = "60s", by = ["{by}"] }}]"#);
    let trial = stage.trial(&limit("user")).await;
    let user = [("user", "ada")];
    stage.gate.put_override(&trial.name, "who", &user, 9, "me").await.expect("it is taken");
    assert_eq!(trial.peek(&user, 1).await.decision.limits[0].standing.max, 9);
    trial.apply(&limit("team")).await;
    assert_eq!(trial.peek(&[("team", "ada")], 1).await.decision.limits[0].standing.max, 2);
    // It is kept, and counts again with what it was made for.
    trial.apply(&limit("user")).await;
    assert_eq!(trial.peek(&user, 1).await.decision.limits[0].standing.max, 9);
}
