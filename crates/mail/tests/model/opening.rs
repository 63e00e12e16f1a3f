//! The relay's own file: kept over restarts, and never another program's.

use std::path::Path;

use tollgate::Tollgate;
use tollgate_mail::{Mail, MailError, Status};

use crate::stage::{new_account, new_message, new_tenant, settings};

async fn open(folder: &Path) -> Result<(Tollgate, Mail), MailError> {
    let url = format!("sqlite:{}", folder.join("tollgate.db").display());
    let gate = Tollgate::open(&url).await.unwrap();
    let mail = Mail::open(gate.clone(), &url, settings()).await?;
    Ok((gate, mail))
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, mail) = open(folder.path()).await.unwrap();
    mail.put_tenant(new_tenant("acme")).await.unwrap();
    mail.put_account(new_account("acme", "main")).await.unwrap();
    let token = mail.new_tenant_token("acme").await.unwrap();
    mail.add_messages(vec![new_message("a"), new_message("b")]).await.unwrap();
    mail.close();
    assert!(mail.tenants().await.is_err(), "a closed relay answers nothing");
    gate.close();
    drop((gate, mail));
    let (_gate, mail) = open(folder.path()).await.unwrap();
    assert_eq!(mail.bearer(&token).await.unwrap().as_deref(), Some("acme"));
    assert_eq!(mail.message("acme", "b").await.unwrap().status, Status::Pending);
    assert_eq!(mail.status(None).await.unwrap().pending, 2);
}

#[tokio::test]
async fn another_programs_file_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate-mail.db");
    let theirs = rusqlite::Connection::open(&file).unwrap();
    theirs.execute_batch("create table note (text); insert into note values ('mine')").unwrap();
    drop(theirs);
    let before = std::fs::read(&file).unwrap();
    let refused = open(folder.path()).await.err();
    let Some(MailError::Store(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate-mail.db"), [b'x'; 4096]).unwrap();
    let refused = open(folder.path()).await.err();
    let Some(MailError::Store(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), tollgate::StoreErrorKind::Corrupt, "{error}");
}
