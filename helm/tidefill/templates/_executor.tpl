{{/* What a worker with executors is started with: Spark's settings, which the values `worker.sparkConf` override. Spark
     has $(NAME) replaced by the variable of the container. */}}
{{- define "tidefill.executorConf" -}}
{{- $worker := .worker }}
{{- $slots := mul (int $worker.executors) (int (index $worker.sparkConf "spark.executor.cores" | default "1")) }}
spark.kubernetes.namespace: $(POD_NAMESPACE)
spark.kubernetes.driver.pod.name: $(POD_NAME)
spark.kubernetes.container.image: {{ include "tidefill.image" (dict "image" $worker.image "version" .root.Chart.AppVersion) }}
spark.kubernetes.container.image.pullPolicy: {{ $worker.image.pullPolicy }}
spark.kubernetes.authenticate.executor.serviceAccountName: {{ include "tidefill.name" .root }}-executor
spark.kubernetes.executor.podTemplateFile: /etc/tidefill/executor.yaml
spark.kubernetes.executor.label.tidefill.dev/worker: $(POD_NAME)
# Nothing but pods is created, so that the driver needs no further rights.
spark.kubernetes.executor.disableConfigMap: "true"
spark.kubernetes.driver.ownPersistentVolumeClaim: "false"
spark.kubernetes.driver.reusePersistentVolumeClaim: "false"
spark.kubernetes.driver.service.deleteOnTermination: "false"
spark.executor.instances: {{ $worker.executors | int | quote }}
spark.executor.cores: "1"
spark.executor.memory: 1g
# Python's processes, beside the JVM
spark.executor.memoryOverhead: 1g
spark.default.parallelism: {{ $slots | quote }}
spark.driver.host: $(POD_IP)
spark.driver.bindAddress: $(POD_IP)
spark.driver.port: "7078"
spark.driver.blockManager.port: "7079"
spark.blockManager.port: "7079"
# Tasks carry the password of the state store.
spark.authenticate: "true"
spark.network.crypto.enabled: "true"
{{- end -}}

{{/* The pod of an executor. Spark adds its image, memory, variables and owner. */}}
{{- define "tidefill.executorPod" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "tidefill.labels" .root | nindent 4 }}
    app.kubernetes.io/component: executor
  {{- with .worker.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .worker.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  shareProcessNamespace: true
  {{- include "tidefill.pullSecrets" .root | nindent 2 }}
  securityContext:
    {{- include "tidefill.podSecurity" .root | nindent 4 }}
  containers:
    - name: executor
      command: [python, -m, workers.executor]
      terminationMessagePolicy: FallbackToLogsOnError
      env:
        - {name: HOME, value: /var/lib/tidefill}
      securityContext:
        {{- include "tidefill.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /var/lib/tidefill}
        - {name: spark-local-dir-1, mountPath: /var/spark}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: home
      emptyDir: {}
    - name: spark-local-dir-1
      emptyDir:
        sizeLimit: {{ .worker.scratchSize }}
  {{- include "tidefill.placement" .worker | nindent 2 }}
{{- end -}}

{{/* The names of the profiles with executors, as a JSON list. */}}
{{- define "tidefill.driving" -}}
{{- $found := list }}
{{- if eq .Values.worker.launcher "kubernetes" }}
{{- range $profile, $values := .Values.worker.profiles }}
{{- if $values.executors }}
{{- $found = append $found $profile }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $found -}}
{{- end -}}

{{/* Not empty if a worker has a master of k8s://, and no executors of the chart. */}}
{{- define "tidefill.ownExecutors" -}}
{{- $workers := list .Values.worker }}
{{- if eq .Values.worker.launcher "kubernetes" }}
{{- $workers = list }}
{{- range .Values.worker.profiles }}
{{- $workers = append $workers (mergeOverwrite (deepCopy $.Values.worker) (deepCopy .)) }}
{{- end }}
{{- end }}
{{- range $workers }}
{{- if and (hasPrefix "k8s://" .sparkMaster) (not .executors) }}true{{ end }}
{{- end }}
{{- end -}}
