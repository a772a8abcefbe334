import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface Props {
  label: string;
  hint?: string | undefined;
  children: (ids: { id: string; "aria-describedby": string | undefined }) => ComponentChildren;
}

/** A label, its control, and a hint that assistive technology reads with the control. */
export function Field({ label, hint, children }: Props) {
  const id = useId();
  const hintId = `${id}-hint`;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({ id, "aria-describedby": hint ? hintId : undefined })}
      {hint && (
        <p class="hint" id={hintId}>
          {hint}
        </p>
      )}
    </div>
  );
}
