//! Keys and passwords at rest. On files, and on PostgreSQL.

use std::path::Path;

use testkit::servers::Postgres;
use tollgate::Tollgate;
use tollgate_mail::{AccountKey, KeySource, Mail, MailError, MailSettings, Secret};

use crate::stage::{new_account, new_message, new_tenant};

async fn open(url: &str, key: KeySource) -> Result<(Tollgate, Mail), MailError> {
    let gate = Tollgate::open(url).await.unwrap();
    let opened =
        Mail::open(gate.clone(), url, MailSettings { key, ..MailSettings::default() }).await;
    match opened {
        Ok(mail) => Ok((gate, mail)),
        Err(error) => {
            gate.close();
            Err(error)
        }
    }
}

fn given(text: &str) -> KeySource {
    KeySource::Given(Secret::new(text))
}

async fn add_account(mail: &Mail) -> Result<(), MailError> {
    mail.put_tenant(new_tenant("acme")).await?;
    let mut account = new_account("acme", "main");
    account.password = Some(Secret::new("correct horse battery"));
    mail.put_account(account).await.map(drop)
}

fn holds(folder: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(folder).unwrap();
    files.into_iter().any(|file| {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[tokio::test]
async fn a_key_file_is_made_at_first_need_and_needed_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("gate.db").display());
    let file = folder.path().join("gate-mail.key");
    let (gate, mail) = open(&url, KeySource::File(file.clone())).await.unwrap();
    assert!(!file.exists(), "nobody needed it yet");
    add_account(&mail).await.unwrap();
    assert!(file.exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    mail.close();
    gate.close();
    drop((mail, gate));
    assert!(!holds(folder.path(), "correct horse battery"), "the password is sealed");
    let (gate, mail) = open(&url, KeySource::File(file.clone())).await.unwrap();
    let account = mail.account(&AccountKey::new("acme", "main")).await.unwrap();
    assert!(account.has_password && account.password.is_none());
    mail.close();
    gate.close();
    drop((mail, gate));
    std::fs::remove_file(&file).unwrap();
    let missing = open(&url, KeySource::File(file)).await.err();
    assert!(matches!(missing, Some(MailError::Key(_))), "{missing:?}");
}

#[tokio::test]
async fn a_key_file_that_holds_no_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("gate.db").display());
    let file = folder.path().join("gate-mail.key");
    for text in ["", "sesame"] {
        std::fs::write(&file, text).unwrap();
        let bad = open(&url, KeySource::File(file.clone())).await.err();
        let Some(MailError::Key(message)) = bad else { panic!("{bad:?}") };
        assert!(message.contains(&file.display().to_string()), "{message}");
        assert!(!message.contains("sesame"), "{message}");
    }
    // Nor does one that came meanwhile become the key.
    std::fs::remove_file(&file).unwrap();
    let (_gate, mail) = open(&url, KeySource::File(file.clone())).await.unwrap();
    std::fs::write(&file, "").unwrap();
    let sealed = add_account(&mail).await;
    assert!(matches!(sealed, Err(MailError::Key(_))), "{sealed:?}");
    let files = std::fs::read_dir(folder.path()).unwrap();
    let named = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(named.filter(|name| name.contains("key")).collect::<Vec<_>>(), ["gate-mail.key"]);
}

#[tokio::test]
async fn another_key_is_an_error_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("gate.db").display());
    let hex = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let (gate, mail) = open(&url, given(hex)).await.unwrap();
    add_account(&mail).await.unwrap();
    mail.close();
    gate.close();
    drop((mail, gate));
    let other = open(&url, given("another passphrase altogether")).await.err();
    let Some(MailError::Key(message)) = other else { panic!("{other:?}") };
    assert!(message.contains("TOLLGATE_MAIL_KEY"), "{message}");
    assert!(!message.contains("altogether"), "{message}");
    let short = open(&url, given("too short")).await.err();
    assert!(matches!(short, Some(MailError::Key(_))), "{short:?}");
    // The same key in other words.
    let base64 = "ABEiM0RVZneImaq7zN3u/wARIjNEVWZ3iJmqu8zd7v8=";
    open(&url, given(base64)).await.unwrap();
}

#[tokio::test]
async fn instances_on_one_database_must_agree_and_one_without_a_key_can_seal_nothing() {
    let schema = testkit::random::name("mail").replace('-', "_");
    let url = format!("{}?schema={schema}", Postgres::shared().url());
    let (_gate, mail) = open(&url, KeySource::Standard).await.unwrap();
    let sealed = add_account(&mail).await;
    assert!(matches!(sealed, Err(MailError::Key(_))), "{sealed:?}");
    let mut open_account = new_account("acme", "open");
    (open_account.user, open_account.password) = (None, None);
    mail.put_account(open_account).await.unwrap();
    let (_gate, first) = open(&url, given("the passphrase of all instances")).await.unwrap();
    let (_gate, late) = open(&url, given("the passphrase of just this one")).await.unwrap();
    add_account(&first).await.unwrap();
    let refused = add_account(&late).await;
    assert!(matches!(refused, Err(MailError::Key(_))), "{refused:?}");
    let other = open(&url, given("the passphrase of just this one")).await.err();
    assert!(matches!(other, Some(MailError::Key(_))), "{other:?}");
    let without = open(&url, KeySource::Standard).await.err();
    assert!(matches!(without, Some(MailError::Key(_))), "{without:?}");
    let stored = Postgres::shared()
        .psql(&format!("select encode(password, 'escape') from {schema}.mail_account"));
    assert!(!stored.contains("correct horse"), "{stored}");
}

#[tokio::test]
async fn the_relay_goes_on_after_its_database_was_away() {
    let postgres = Postgres::start();
    let url = format!("{}?deadline=2s", postgres.url());
    let (_gate, mail) = open(&url, given("the passphrase of all instances")).await.unwrap();
    add_account(&mail).await.unwrap();
    postgres.stop();
    let away = mail.tenants().await;
    assert!(matches!(away, Err(MailError::Store(_))), "{away:?}");
    postgres.start_again();
    let began = std::time::Instant::now();
    while mail.add_messages(vec![new_message("a")]).await.is_err() {
        assert!(began.elapsed().as_secs() < 60, "the relay stays away");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(mail.status(None).await.unwrap().pending, 1);
}

#[tokio::test]
async fn ten_instances_start_together() {
    let schema = testkit::random::name("mail").replace('-', "_");
    let url = format!("{}?schema={schema}&lanes=1", Postgres::shared().url());
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { open(&url, KeySource::Standard).await.map(drop) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}
