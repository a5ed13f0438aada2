//! Ids: generated ones, prefixes, completion, and the deletion of all sandboxes.

use crate::transcript::Stage;

#[test]
fn a_generated_id_is_short_and_its_beginning_is_enough() {
    let stage = Stage::new();
    let id = stage.run("sandpod create --quiet").trim().to_owned();
    assert_eq!(id.len(), 11, "{id}");
    assert_eq!(stage.run(&format!("sandpod exec {} echo here", &id[..9])), "here\n");
    assert_eq!(
        stage.run(&format!("echo x | sandpod write {} f; sandpod cat {} f", &id[3..], &id[3..8])),
        "x\n"
    );
    assert!(stage.run(&format!("sandpod info {} | head -1", &id[..8])).contains(&id));
    stage.run(&format!("sandpod delete {}", &id[..9]));
    assert_eq!(stage.run("sandpod list --quiet"), "");
}

#[test]
fn an_ambiguous_beginning_lists_the_ids() {
    let stage = Stage::new();
    stage.run("for id in web-a web-b job-10; do sandpod create --quiet --id $id; done");
    let printed = stage.run("sandpod exec web true");
    assert!(printed.contains("'web' is the beginning of 2 ids: web-a, web-b."), "{printed}");
    assert_eq!(stage.run("sandpod exec web-b echo b"), "b\n");
    assert!(stage.run("sandpod exec job-1 true").contains("Sandbox not found"), "job-1 is not job-10");
    assert!(
        stage.run("sandpod delete job").contains("does not exist"),
        "a chosen id is deleted by its whole name"
    );
    stage.run("sandpod delete -af");
    assert_eq!(stage.run("sandpod list --quiet"), "");
}

#[test]
fn delete_all_deletes_the_sandboxes_with_the_labels() {
    let stage = Stage::new();
    stage.run("sandpod create --quiet --id a --label team=x; sandpod create --quiet --id b");
    assert_eq!(stage.run("sandpod delete --all --label team=x"), "deleted: a\n");
    assert_eq!(stage.run("sandpod delete --all"), "deleted: b\n");
    assert_eq!(stage.run("sandpod delete --all"), "there are no sandboxes to delete\n");
    assert_eq!(stage.run("sandpod delete -f b"), "");
}

#[test]
fn completion_knows_ids_processes_and_paths() {
    let stage = Stage::new();
    stage.run("sandpod create --quiet --id work; sandpod exec work 'mkdir dir; touch dir/one'; sandpod exec work -d sleep 1000");
    let complete = |words: &str, index: usize| {
        stage.run(&format!("COMPLETE=bash _CLAP_IFS=\"$(printf '\\n')\n\" _CLAP_COMPLETE_INDEX={index} _CLAP_COMPLETE_COMP_TYPE=9 _CLAP_COMPLETE_SPACE=true sandpod -- sandpod {words}"))
    };
    assert!(complete("exec wo", 2).contains("work"));
    assert!(complete("kill work p", 3).contains("p2"));
    assert!(complete("ls work di", 3).contains("dir/"));
    assert!(complete("cp work:dir/o", 2).contains("work:dir/one"));
    assert!(complete("cp work : dir/o", 4).contains("dir/one"), "bash splits words at colons");
    assert!(stage.run("sandpod completions bash").contains("COMPLETE"));
    stage.run("sandpod delete work");
}
