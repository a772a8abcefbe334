import { useState } from "preact/hooks";

import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { Field } from "../components/Field";
import { TtlSelect, ttlFromText } from "../components/TtlSelect";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { applyWorkspace } from "../state/live";
import { useLoader } from "../state/loader";
import { session } from "../state/session";
import { useTask } from "../state/task";
import type { Image } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

export function CreateDialog() {
  const text = messages.value.create;
  const ttl = session.value?.ttl;
  const task = useTask();
  const images = useLoader("images", api.images);
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [image, setImage] = useState("");
  const [standbyTtl, setStandbyTtl] = useState("");
  const [archiveTtl, setArchiveTtl] = useState("");
  const [startNow, setStartNow] = useState(true);

  const submit = async (event: Event) => {
    event.preventDefault();
    const created = await task.run(async () => {
      const workspace = await api.createWorkspace({
        name: name.trim(),
        description: description.trim(),
        ...(image ? { image_ref: image } : {}),
        standby_ttl_seconds: ttlFromText(standbyTtl),
        archive_ttl_seconds: ttlFromText(archiveTtl),
        desired_state: startNow ? "RUNNING" : "STANDBY",
      });
      applyWorkspace(workspace);
    });
    if (created) closeDialog();
  };

  return (
    <Modal title={text.title}>
      <form onSubmit={submit}>
        <Field label={text.name}>
          {(ids) => (
            <input
              {...ids}
              type="text"
              required
              maxLength={64}
              // biome-ignore lint/a11y/noAutofocus: the user opened this dialog to fill it in
              autoFocus
              autoComplete="off"
              data-testid="create-name"
              value={name}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label={`${text.description} (${text.optional})`}>
          {(ids) => (
            <input
              {...ids}
              type="text"
              maxLength={1000}
              autoComplete="off"
              data-testid="create-description"
              value={description}
              onInput={(event) => setDescription(event.currentTarget.value)}
            />
          )}
        </Field>
        <ImageSelect images={images.data?.items ?? []} value={image} onChange={setImage} />
        <ErrorNote error={images.error} />
        <div class="field-row">
          <TtlSelect
            kind="standby"
            label={text.standbyTtl}
            value={standbyTtl}
            defaultSeconds={ttl?.standby_seconds ?? 0}
            onChange={setStandbyTtl}
          />
          <TtlSelect
            kind="archive"
            label={text.archiveTtl}
            value={archiveTtl}
            defaultSeconds={ttl?.archive_seconds ?? 0}
            onChange={setArchiveTtl}
          />
        </div>
        <label class="check">
          <input
            type="checkbox"
            checked={startNow}
            data-testid="create-start-now"
            onChange={(event) => setStartNow(event.currentTarget.checked)}
          />
          {text.startNow}
        </label>
        <ErrorNote error={task.error} />
        <DialogButtons
          submit={text.submit}
          busy={task.busy}
          busyText={text.submitting}
          testId="create-submit"
        />
      </form>
    </Modal>
  );
}

interface ImageSelectProps {
  images: Image[];
  value: string;
  onChange: (name: string) => void;
}

function ImageSelect({ images, value, onChange }: ImageSelectProps) {
  const chosen = value || images.find((image) => image.default)?.name || images[0]?.name || "";
  return (
    <Field label={messages.value.create.image}>
      {(ids) => (
        <select
          {...ids}
          value={chosen}
          data-testid="create-image"
          onChange={(event) => onChange(event.currentTarget.value)}
        >
          {images.map((image) => (
            <option key={image.name} value={image.name}>
              {image.title}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}
